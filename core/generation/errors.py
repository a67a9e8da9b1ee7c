"""How engines end, and why weights don't reach them."""


class EngineStopped(RuntimeError):
    """The engine was stopped, or failed; `__cause__` says how."""


class WeightsNotReceived(RuntimeError):
    """The weights' source could not be read; the engine goes on with the weights it has."""


class WrongWeights(EngineStopped):
    """The weights as loaded are not those that were published. Nothing was sampled by them, and the engine is given
    up: it no longer has any that are proven."""

    def __init__(self, version: int, wanted: str, got: str) -> None:
        super().__init__(
            f"version {version}: the weights as loaded have fingerprint {got}, the learner published {wanted}"
        )
        self.version, self.wanted, self.got = version, wanted, got
