"""Where one verdict's time and device memory went, phase by phase."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import torch


class Phase(msgspec.Struct, kw_only=True):
    """One phase, all its turns together."""

    seconds: float = 0.0
    own_gb: float = 0.0
    """Most that this process's tensors took."""
    device_gb: float = 0.0
    """In use on the whole device, all processes together, when the phase ended; what it was in between, a sampler
    beside it says (tests/benchmarks/gpu_memory.py)."""


class Accounts:
    """Of one stage, for the latest candidate."""

    def __init__(self, device: str) -> None:
        self._device = device
        self.phases: dict[str, Phase] = {}
        self.arenas_gb: dict[str, float] = {}
        """Memory that is shared with children."""
        self.child_gb: dict[str, float] = {}
        """Most that a child's torch had reserved, by its own word; arenas are not in it."""

    def renew(self) -> None:
        self.phases, self.child_gb = {}, {}

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        gpu = self._device != "cpu"
        if gpu:
            torch.cuda.reset_peak_memory_stats()
        try:
            yield
        finally:
            found = self.phases.setdefault(name, Phase())
            found.seconds += time.monotonic() - started
            if gpu:
                with contextlib.suppress(RuntimeError):  # a lost context; whoever raised it tells
                    free, total = torch.cuda.mem_get_info()
                    found.own_gb = max(found.own_gb, torch.cuda.max_memory_allocated() / 1e9)
                    found.device_gb = max(found.device_gb, (total - free) / 1e9)

    def note_child(self, name: str, answer: Any) -> None:
        """What a child answered to `held`."""
        if isinstance(answer, list) and len(answer) == 2 and all(type(part) is int for part in answer):
            self.child_gb[name] = round(answer[1] / 1e9, 3)

    def describe(self) -> dict[str, Any]:
        """For a benchmark's line of JSON."""
        return {
            "seconds": {name: round(phase.seconds, 3) for name, phase in self.phases.items()},
            "own_peak_gb": {name: round(phase.own_gb, 2) for name, phase in self.phases.items()},
            "device_gb": {name: round(phase.device_gb, 2) for name, phase in self.phases.items()},
            "arenas_gb": self.arenas_gb,
            "children_gb": self.child_gb,
        }
