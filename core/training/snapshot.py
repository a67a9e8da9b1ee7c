"""What the trainer was at one moment, in memory that no later step touches: files are written beside the next step.

    thread of the trainer   take: gather, copy      ─▶ step t+1 ...                  (collectives, milliseconds)
    any other thread        publish / write         ─▶ folder, hand-over, checkpoint (no collective, seconds)

On a GPU a copy runs on a stream of its own into pinned host memory, beside forward and backward of the next step;
`before_change`, in the trainer's own stream, holds back whatever changes what is still being copied. Host memory is
kept and used again, so that one `Staging` has at most one snapshot at a time: taking the next one before the last is
written is an error, never a mixture of two versions.

Nothing is written to disk while other ranks stand in a collective: a slow disk can't run into their deadline.
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from core.checkpoints import store
from core.weights import filesystem
from core.weights.adapters import Part
from core.weights.fingerprint import fingerprint
from core.weights.outgoing import Outgoing
from core.weights.shards import iterate_tensors

Named = list[tuple[str, Tensor]]
_AHEAD_BYTES = 2**29
"""With several ranks: so much that is gathered may wait for its copy, since it takes room on the card."""


class Staging:
    """Host memory for one snapshot at a time of the same tensors. `take` and `before_change` are for the trainer's
    thread, `written` for any."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._kept: dict[str, Tensor] = {}
        self._taken = False
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._copied: Any = None

    def take(self, tensors: Iterable[tuple[str, Tensor]], *, gathered: bool = False) -> Named:
        """Copies of `tensors`, whole and once each, on the CPU. They hold their values when `written` begins. gathered:
        tensors are temporary. Raises RuntimeError while the snapshot before is not written."""
        if self._taken:
            raise RuntimeError("the snapshot before this one is still being written: wait for it first")
        out: Named = []
        ahead = 0
        for name, tensor in tensors:
            out.append((name, self._copy(name, tensor.detach())))
            ahead += tensor.numel() * tensor.element_size()
            if gathered and self._stream is not None and ahead > _AHEAD_BYTES:
                self._stream.synchronize()
                ahead = 0
        if self._stream is not None:
            self._copied = self._stream.record_event()
        self._taken = True
        return out

    def _copy(self, name: str, tensor: Tensor) -> Tensor:
        mine = self._kept.get(name)
        if mine is None or mine.shape != tensor.shape or mine.dtype != tensor.dtype:
            mine = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=self._stream is not None)
            self._kept[name] = mine
        if self._stream is None or tensor.device.type != "cuda":
            return mine.copy_(tensor)
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            mine.copy_(tensor, non_blocking=True)
        tensor.record_stream(self._stream)
        return mine

    def before_change(self) -> None:
        """What the trainer's stream does from now on comes after the copies."""
        if self._copied is not None:
            torch.cuda.current_stream(self._device).wait_event(self._copied)

    @contextlib.contextmanager
    def written(self) -> Iterator[None]:
        """Around the one use of a snapshot: waits for its copies, and gives its memory back at the end."""
        if self._copied is not None:
            self._copied.synchronize()
        try:
            yield
        finally:
            self._taken = False


@dataclass(frozen=True)
class TakenWeights:
    """The policy of one version, in the type that it is published in."""

    version: int
    tensors: Named
    staging: Staging | None
    """Whose memory the tensors are; None: they are on the device, and nobody's else."""
    outgoing: Outgoing | None
    device: torch.device
    ready: Any = None
    """CUDA event after which tensors on the device hold their values."""
    parts: Sequence[Part] = ()
    """Adapters that are in the tensors, where they are handed over alone."""

    def publish(self, folder: str | Path, keep: int = 3) -> filesystem.Manifest:
        """Hand it over, once: through `folder`, or from the device's memory by `outgoing`."""
        if self.outgoing is not None:
            with _beside(self.device, self.ready):
                return self.outgoing.publish(folder, self.version, self.tensors, keep=keep, parts=self.parts)
        assert self.staging is not None
        with self.staging.written():
            return filesystem.publish(folder, self.version, self.tensors, keep=keep)

    def fingerprint(self) -> str:
        """What `publish` would write into the manifest; in its place, once."""
        with _beside(self.device, self.ready) if self.staging is None else self.staging.written():
            return fingerprint(self.tensors)


@dataclass(frozen=True)
class TakenCheckpoint:
    """Everything that a run continues from (`core.checkpoints.store`)."""

    weights: Named
    optimizer: Named
    random: dict[str, Tensor]
    extra: store.Extra
    model: str
    dtype: str
    staging: Staging

    @property
    def version(self) -> int:
        return self.extra.version

    def write(self, folder: str | Path) -> Path:
        """Write it, once, under `folder`; answers with the `.written` folder. Commit it after verifying."""
        with self.staging.written():
            return store.write(
                folder, self.version, weights=self.weights, optimizer=self.optimizer, random=self.random,
                extra=self.extra, model=self.model, dtype=self.dtype,
            )  # fmt: skip

    def equals(self, path: Path) -> bool:
        """Whether the checkpoint at `path` has the same weights and the same optimizer state, to the last bit. In place
        of `write`, once."""
        with self.staging.written():
            for stem, mine in (("weights", dict(self.weights)), ("optimizer", dict(self.optimizer))):
                for name, tensor in iterate_tensors(path, stem):
                    other = mine.pop(name, None)
                    if other is None or other.dtype != tensor.dtype or not torch.equal(other, tensor):
                        return False
                if mine:
                    return False
        return True


@contextlib.contextmanager
def _beside(device: torch.device, ready: Any) -> Iterator[None]:
    """GPU work of this thread on a stream of its own, after `ready`, and done at the end: on the common stream it would
    stand behind the step that runs."""
    if device.type != "cuda":
        yield
        return
    stream = torch.cuda.Stream(device)
    stream.wait_event(ready)
    with torch.cuda.stream(stream):
        yield
        stream.synchronize()


def random_state(device: torch.device) -> dict[str, Tensor]:
    """State of torch's generators as uint8 tensors. Steps don't depend on it (they seed their own draws)."""
    state = {"torch": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_random_state(state: dict[str, Tensor], device: torch.device) -> None:
    """The reverse; a generator of a device that isn't here is passed over."""
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
