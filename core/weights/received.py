"""What every transport gives the engine's side."""

from collections.abc import Callable

from torch import Tensor


class Received:
    """Full tensors by published name, and how to give back what holds them."""

    def __init__(self, tensors: list[tuple[str, Tensor]], release: Callable[[], None] = lambda: None) -> None:
        self.tensors = tensors
        self.bytes = sum(tensor.numel() * tensor.element_size() for _, tensor in tensors)
        self.release = release
