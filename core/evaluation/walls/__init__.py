"""What keeps a candidate in: namespaces, seccomp, Landlock, limits. `sandbox` is the door; kernels are unknown here."""
