"""Weights over a collective group that is formed for one hand-over: NCCL between cards, gloo without.

    learner   offer(version, tensors) ─▶ snapshot, fingerprint, source `nccl://host:port/VERSION-OFFER` for the manifest
              a thread then serves whoever joins:   tickets ─▶ roster ─▶ group ─▶ buckets broadcast ─▶ group gone
    engine    receive(source): take a ticket ─▶ wait for the roster ─▶ join the group ─▶ receive

No group outlives its hand-over, so engines come and go as they like: who joins late is in the next round. The learner
never waits for engines, it serves a snapshot. Every wait has a deadline, and a round that fails is given up by both
sides: its group is aborted, its thread, should it hang in a library, is left behind, and the next round is a new group.
"""

import threading
import time
from collections.abc import Iterable
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor

from core.weights.filesystem import Manifest
from core.weights.fingerprint import Fingerprint
from core.weights.received import Received

BUCKET_BYTES = 256 * 2**20
_POLL_S = 0.005


class Layout(msgspec.Struct, frozen=True):
    """What travels: tensors one after the other in flat buckets of bytes."""

    names: list[str]
    shapes: list[list[int]]
    dtypes: list[str]
    buckets: list[int]
    """Tensors in each bucket."""


def _flat(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def pack(tensors: list[tuple[str, Tensor]], bucket_bytes: int) -> Layout:
    buckets: list[int] = []
    size = bucket_bytes + 1
    for _, tensor in tensors:
        nbytes = tensor.numel() * tensor.element_size()
        if size + nbytes > bucket_bytes:
            buckets.append(0)
            size = 0
        buckets[-1] += 1
        size += nbytes
    return Layout(
        [name for name, _ in tensors], [list(t.shape) for _, t in tensors],
        [str(t.dtype).removeprefix("torch.") for _, t in tensors], buckets,
    )  # fmt: skip


def form(store: dist.Store, rank: int, size: int, device: torch.device, timeout_s: float) -> Any:
    """A group of its own, beside whatever groups the process has."""
    timeout = timedelta(seconds=timeout_s)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        options = dist.ProcessGroupNCCL.Options()
        # Longer than our own deadline, so that the watchdog does not end the process over one hand-over.
        options._timeout = timedelta(hours=2)
        return dist.ProcessGroupNCCL(store, rank, size, options)
    return dist.ProcessGroupGloo(store, rank, size, timeout)


def broadcast(group: Any, tensor: Tensor, deadline: float) -> None:
    """From rank 0; raises TimeoutError, and aborts the group, when it is not over at `deadline` (monotonic)."""
    options = dist.BroadcastOptions()
    options.rootRank = 0
    options.asyncOp = True
    work = group.broadcast([tensor], options)
    while not work.is_completed():
        if time.monotonic() > deadline:
            group.abort()
            raise TimeoutError("a broadcast of weights was not over in time; its group is given up")
        time.sleep(_POLL_S / 5)
    work.wait()


class Sender:
    """The learner's side. One per learner; `offer` replaces what was offered before."""

    def __init__(
        self, host: str, *, device: torch.device, port: int = 0, join_s: float = 0.2, timeout_s: float = 60.0,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:  # fmt: skip
        """`host` is where engines reach this process. A round starts `join_s` after its first ticket."""
        self._host, self._device = host, device
        self._join_s, self._timeout_s, self._bucket_bytes = join_s, timeout_s, bucket_bytes
        self._store = dist.TCPStore(
            host, port, None, True, timedelta(seconds=timeout_s), wait_for_workers=False
        )  # fmt: skip
        self._stop = threading.Event()
        self._server: threading.Thread | None = None
        self._offers = 0
        self.rounds: list[dict[str, float]] = []
        """`receivers`, `seconds`, `bytes` of each round that went well."""
        self.failures: list[str] = []

    def offer(
        self, version: int, tensors: Iterable[tuple[str, Tensor]], *, owned: bool = False
    ) -> tuple[str, Manifest]:
        """Keep a snapshot of `tensors` (each once, full, any device) and serve it from now on; with `owned` nobody
        changes them any more, and those that are on the device are the snapshot. Returns the source for
        `core.weights.incoming.receive` and the manifest."""
        seal, snapshot, dtypes = Fingerprint(), [], set()
        for name, tensor in tensors:
            seal.add(name, tensor)
            dtypes.add(str(tensor.dtype).removeprefix("torch."))
            snapshot.append((name, tensor.detach().to(self._device, copy=not owned)))
        self._end_server()
        layout = pack(snapshot, self._bucket_bytes)
        # A version may be offered again after a rollback: tickets belong to the offer.
        self._offers += 1
        offer = f"{version}-{self._offers}"
        self._store.set(f"{offer}/layout", msgspec.json.encode(layout).decode())
        self._store.set("offered", offer)
        self._stop = threading.Event()
        self._server = threading.Thread(
            target=self._serve, args=(offer, snapshot, layout, self._stop), name="weights-sender", daemon=True
        )
        self._server.start()
        size = sum(tensor.numel() * tensor.element_size() for _, tensor in snapshot)
        manifest = Manifest(
            version=version, fingerprint=seal.hexdigest(), dtype="+".join(sorted(dtypes)), tensors=len(snapshot),
            bytes=size, files=(),
        )  # fmt: skip
        return f"nccl://{self._host}:{self._store.port}/{offer}", manifest

    def close(self) -> None:
        self._end_server()
        self._store.set("offered", "nothing")

    def _end_server(self) -> None:
        if self._server is not None:
            self._stop.set()
            self._server.join(self._timeout_s)
            self._server = None

    def _serve(self, offer: str, snapshot: list[tuple[str, Tensor]], layout: Layout, stop: threading.Event) -> None:
        served = 0
        while not stop.is_set():
            tickets = self._store.add(f"{offer}/tickets", 0)
            if tickets == served:
                stop.wait(_POLL_S)
                continue
            stop.wait(self._join_s)
            tickets = self._store.add(f"{offer}/tickets", 0)
            failure: list[str] = []
            # In a thread of its own, since the library may block for ever where a joiner was killed.
            round_ = threading.Thread(
                target=self._round, args=(offer, served, tickets, snapshot, layout, failure), daemon=True
            )
            round_.start()
            round_.join(self._timeout_s + 1)
            if round_.is_alive():
                failure.append(f"round {served}-{tickets} of {offer} hung")
            self.failures += failure
            served = tickets

    def _round(
        self, offer: str, first: int, last: int, snapshot: list[tuple[str, Tensor]], layout: Layout,
        failure: list[str],
    ) -> None:  # fmt: skip
        began = time.monotonic()
        deadline = began + self._timeout_s
        try:
            self._store.set(f"{offer}/roster/{first}", f"{first} {last}")
            for ticket in range(first + 1, last):
                self._store.set(f"{offer}/roster/{ticket}", f"{first} {last}")
            store = dist.PrefixStore(f"{offer}/group/{first}", self._store)
            group = form(store, 0, last - first + 1, self._device, self._timeout_s)
            at = 0
            for count in layout.buckets:
                bucket = torch.cat([_flat(tensor) for _, tensor in snapshot[at : at + count]])
                broadcast(group, bucket, deadline)
                at += count
            size = sum(t.numel() * t.element_size() for _, t in snapshot)
            self.rounds.append(
                {"receivers": float(last - first), "seconds": time.monotonic() - began, "bytes": float(size)}
            )
        except Exception as error:  # the round is given up; who was in it asks again
            failure.append(f"{type(error).__name__}: {error}")


def receive(source: str, *, device: torch.device, timeout_s: float) -> Received:
    """Join the next round of `source`. Raises FileNotFoundError when the learner offers another version by now,
    TimeoutError when the round is not over in time."""
    deadline = time.monotonic() + timeout_s
    parts = urlsplit(source)
    offer = parts.path.strip("/")
    if not parts.hostname or not parts.port or not offer.replace("-", "").isdigit():
        raise ValueError(f"got weights' source {source!r}, wanted nccl://HOST:PORT/VERSION-OFFER")
    try:
        base = dist.TCPStore(parts.hostname, parts.port, None, False, timedelta(seconds=timeout_s))
        if base.get("offered").decode() != offer:
            raise FileNotFoundError(f"the learner no longer offers {source}")
        layout = msgspec.json.decode(base.get(f"{offer}/layout"), type=Layout)
        ticket = base.add(f"{offer}/tickets", 1) - 1
        while not base.check([f"{offer}/roster/{ticket}"]):
            if base.get("offered").decode() != offer:
                raise FileNotFoundError(f"the learner offered another version than {source} meanwhile")
            if time.monotonic() > deadline:
                raise TimeoutError(f"the learner did not take ticket {ticket} for {source} in {timeout_s:g} s")
            time.sleep(_POLL_S)
        first, last = map(int, base.get(f"{offer}/roster/{ticket}").decode().split())
        store = dist.PrefixStore(f"{offer}/group/{first}", base)
        group = form(store, ticket - first + 1, last - first + 1, device, max(1.0, deadline - time.monotonic()))
        return _collect(group, layout, device, deadline)
    except dist.DistError as error:  # the store's and the groups' own errors
        raise TimeoutError(f"weights from {source} did not arrive: {str(error).splitlines()[0]}") from error


def _collect(group: Any, layout: Layout, device: torch.device, deadline: float) -> Received:
    tensors: list[tuple[str, Tensor]] = []
    at = 0
    for count in layout.buckets:
        here = range(at, at + count)
        dtypes = [getattr(torch, layout.dtypes[i]) for i in here]
        sizes = [torch.Size(layout.shapes[i]).numel() * d.itemsize for i, d in zip(here, dtypes, strict=True)]
        bucket = torch.empty(sum(sizes), dtype=torch.uint8, device=device)
        broadcast(group, bucket, deadline)
        for i, part, dtype in zip(here, bucket.split(sizes), dtypes, strict=True):
            tensors.append((layout.names[i], _typed(part, dtype).view(layout.shapes[i])))
        at += count
    return Received(tensors)


def _typed(part: Tensor, dtype: torch.dtype) -> Tensor:
    """Bytes as `dtype`; copied where their place in the bucket is not aligned for it."""
    return (part if part.storage_offset() % dtype.itemsize == 0 else part.clone()).view(dtype)
