"""Who holds the interpreter while a step begins: what is prepared beside it waits until the GPU has work.

A step's thread and the one that prepares the next batch share one interpreter. Until the first backward pass is in the
GPU's queue, every moment in which the other one runs is a moment in which the GPU stands still; afterwards the GPU has
work for longer than preparing takes. Without a GPU nobody waits: what computes there lets go of the interpreter anyway.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

MOST_S = 2.0
"""A step whose first backward pass takes longer (it is compiled) keeps nobody waiting."""


class Meanwhile:
    """One for a trainer; threads call `wait`, its step does the rest."""

    def __init__(self, device: torch.device) -> None:
        self._queues = device.type == "cuda"
        self._free = threading.Event()
        self._free.set()

    @contextmanager
    def step(self) -> Iterator[None]:
        if self._queues:
            self._free.clear()
        try:
            yield
        finally:
            self._free.set()

    def queued(self) -> None:
        """The GPU has work now."""
        self._free.set()

    def wait(self) -> None:
        """Until no step is beginning, `MOST_S` at most."""
        self._free.wait(MOST_S)
