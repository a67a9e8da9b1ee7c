"""The `kernelmill` command: one thin entry point per thing that a person runs."""
