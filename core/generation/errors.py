"""How engines end."""


class EngineStopped(RuntimeError):
    """The engine was stopped, or failed; `__cause__` says how."""
