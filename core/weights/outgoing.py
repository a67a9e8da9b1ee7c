"""Weights on their way out of the learner: one call for every transport (`core.weights.incoming` is the other side).

    publish ─▶ memory of the card (ipc), or a snapshot that is served to whoever joins (nccl)    ─▶ manifest.source
            └▶ the same weights into the folder, by a thread, beside the next step               ─▶ the version's folder

Tensors stay on the learner's device until the thread writes them; the host is on no engine's way.

Engines pull, so one that starts late gets what stands: the source serves as long as this process lives, and the folder
longer. The folder's copy is also what the parity probe scores. The first version is always copied; a later one is left
out while the copy before it is still being written, since the newest source stands anyway and steps must not wait.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import msgspec
import structlog
import torch
from torch import Tensor

from core.weights import filesystem, ipc, nccl
from core.weights.filesystem import Manifest

log = structlog.get_logger()


class Outgoing:
    """The learner's hand-over by card or network. One call at a time, from any thread."""

    def __init__(
        self, transport: Literal["ipc", "nccl"], *, device: torch.device, host: str = "127.0.0.1",
        ports: tuple[int, int] = (0, 0), timeout_s: float = 60.0,
    ) -> None:  # fmt: skip
        """host: where engines reach this process; ports: first and last to try for nccl, 0 takes a free one. Raises
        ValueError for ipc without a card, OSError when no port is free."""
        if transport == "ipc" and device.type != "cuda":
            raise ValueError(
                f"weights.transport = 'ipc' hands over the memory of a card, but the learner runs on {device}: set "
                f"weights.transport = 'filesystem'"
            )
        self._transport, self._device, self._timeout_s = transport, device, timeout_s
        self._sender = _sender(host, ports, device, timeout_s) if transport == "nccl" else None
        self._publisher: ipc.Publisher | None = None
        self._copier = ThreadPoolExecutor(1, thread_name_prefix="weights-copy")
        self._copy: Future[Manifest] | None = None
        self.copies_left_out = 0

    def publish(
        self, folder: str | Path, version: int, tensors: Iterable[tuple[str, Tensor]], *, keep: int = 3
    ) -> Manifest:
        """Hand `tensors` over: (Hugging Face name, tensor on any device), full and each once, and nobody changes them
        from now on (`PolicyModel.full_tensors(own=True)`). Returns the manifest, which names the source. Raises what
        writing the copy before this one raised."""
        whole = list(tensors)
        if self._sender is not None:
            source, manifest = self._sender.offer(version, whole, owned=True)
        else:
            if self._publisher is None:
                self._publisher = ipc.Publisher(folder, device=self._device, timeout_s=self._timeout_s)
            source, manifest = self._publisher.publish(version, whole)
        if self._copy is None or self._copy.done():
            if self._copy is not None:
                self._copy.result()
            self._copy = self._copier.submit(filesystem.publish, folder, version, _on_host(whole), keep=keep)
        else:
            self.copies_left_out += 1
            log.info("weights not copied to the folder: the copy before is still being written", version=version)
        return msgspec.structs.replace(manifest, source=source)

    def close(self) -> None:
        """End serving; a copy under way is finished."""
        self._copier.shutdown(wait=True)
        if self._sender is not None:
            self._sender.close()


def _on_host(tensors: list[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Each on the CPU as it is asked for, on a stream of its own, so that a step goes on meanwhile. What is copied has
    been computed: its fingerprint was read."""
    for name, tensor in tensors:
        if tensor.device.type == "cuda":
            with torch.cuda.stream(torch.cuda.Stream(tensor.device)):
                tensor = tensor.cpu()
        yield name, tensor


def _sender(host: str, ports: tuple[int, int], device: torch.device, timeout_s: float) -> nccl.Sender:
    refused: Exception | None = None
    for port in range(ports[0], ports[1] + 1):
        try:
            return nccl.Sender(host, device=device, port=port, timeout_s=timeout_s)
        except torch.distributed.DistError as error:  # in use, or not this host's address
            refused = error
    why = str(refused).splitlines()[0]
    raise OSError(f"weights.host = {host!r}, weights.ports = {list(ports)}: none could be opened ({why})")
