"""What keeps a candidate in: namespaces, seccomp, Landlock, limits. `sandbox` is the door; it knows nothing of kernels."""
