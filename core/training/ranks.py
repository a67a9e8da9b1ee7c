"""Several ranks behind one object: rank 0 lives in this process, the others are processes of their own.

    ranks = RankGroup(settings)          # settings.ranks of them; one is just a trainer here
    ranks.step(samples)                  # all ranks take part; rank 0's answer comes back
    ranks.publish("weights"); ranks.close()

        this process (rank 0)                 TCP store on loopback              rank 1..N-1
        batch k: samples            ------>   batch/k/*  -------------------->   a thread decodes, plans and packs it
        call n: method, arguments   ------>   call/n     -------------------->   wait by ticks, then take part
        its own part, collectives   <======== gloo / NCCL ===================>   its own part, collectives
        wait by ticks               <------   done/n/rank   <-----------------   done, or what went wrong

- Idle ranks wait on the store in ticks of a second, never inside a collective, so that no watchdog ends them however
  long the next batch takes; so do ranks that are started or loaded before the others.
- `prepare` sends a batch ahead, from any thread while a step runs; a batch that no step takes is dropped with the next
  step. Both threads of a rank have a connection of their own to the store, since one is used by one call at a time.
- Arguments travel as MessagePack, never pickled, in pieces below the store's limit.
- A rank dies with its parent (PR_SET_PDEATHSIG where Linux has it, and a look at every tick). When a rank dies, rank 0
  raises; when rank 0 is stuck in a collective that the dead rank will not join, the process ends with code 70: a
  learner restarts from its checkpoint as a whole.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch.distributed as dist

from core.episodes.samples import Sample
from core.training.batch import Prepared
from core.training.credit import refuse_twins
from core.training.settings import TrainerSettings
from core.training.snapshot import TakenCheckpoint, TakenWeights
from core.training.trainer import Trainer, device_of

_PIECE_BYTES = 4 * 2**20
"""The store refuses values above 8 MiB."""
_TICK = timedelta(seconds=1)
_STUCK_S = 20.0
START_TIMEOUT_S = 900.0
LEAVE = "leave"


class RankFailed(RuntimeError):
    """A rank raised or died; the group can't be used any more."""


class Call(msgspec.Struct):
    method: str
    batch: int = -1
    """For a step: which."""
    keywords: dict[str, Any] = {}


def encode_samples(samples: Sequence[Sample]) -> bytes:
    """Samples as MessagePack; arrays as (dtype, bytes)."""
    return msgspec.msgpack.encode(samples, enc_hook=lambda a: (a.dtype.str, a.tobytes()))


def decode_samples(data: bytes) -> list[Sample]:
    return msgspec.msgpack.decode(
        data, type=list[Sample], dec_hook=lambda _, pair: np.frombuffer(pair[1], np.dtype(pair[0]))
    )


class RankGroup:
    """All ranks of a trainer. Not for use from several threads; make it in the thread that stays (a rank dies with the
    thread that started it). Raises RankFailed from any call once a rank is lost."""

    def __init__(self, settings: TrainerSettings, resume: str | Path | None = None) -> None:
        """resume: folder of a committed checkpoint to continue from."""
        self.settings = settings
        self.world = settings.ranks
        self._calls = 0
        self._batches = self._dropped = 0
        self._processes: list[subprocess.Popen[bytes]] = []
        self._in_call = False
        self._closed = threading.Event()
        self._store = (
            dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if settings.sharded else None
        )
        if self._store is not None:
            self._spawn(self._store)
            self._ahead = dist.TCPStore("127.0.0.1", self._store.port, is_master=False)
            self._meet("started", 0)
            join(self._store, settings, 0)
        self.trainer = Trainer(settings, 0, self.world)
        self._meet("loaded", 0)
        if resume is not None:
            self.load(resume)

    def _spawn(self, store: dist.TCPStore) -> None:
        store.set("settings", msgspec.json.encode(self.settings).decode())
        here = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(p for p in [here, os.environ.get("PYTHONPATH", "")] if p)
        for rank in range(1, self.world):
            command = [sys.executable, "-m", "core.training.rank_process", str(store.port), str(rank), str(os.getpid())]
            # torch warns of every tick without a call; what is set in the environment stands
            env = {"TORCH_CPP_LOG_LEVEL": "ERROR", **os.environ, "PYTHONPATH": path}
            self._processes.append(subprocess.Popen(command, env=env))
        if self._processes:
            threading.Thread(target=self._watch, name="rank-watch", daemon=True).start()

    def _meet(self, what: str, rank: int) -> None:
        if self._store is not None:
            meet(self._store, what, rank, self.world, self._check)

    # Calls that all ranks take part in -----------------------------------------------------------------------------

    @property
    def version(self) -> int:
        return self.trainer.version

    def prepare(self, samples: Sequence[Sample]) -> Prepared:
        """`Trainer.prepare` on all ranks, for a later `step`. For one thread at a time, beside any other call."""
        samples = list(samples)
        number = self._send_batch(samples)
        return replace(self.trainer.prepare(samples), number=number)

    def step(self, batch: Sequence[Sample] | Prepared) -> dict[str, float]:
        """`Trainer.step`"""
        samples = batch if isinstance(batch, Prepared) else list(batch)
        number = samples.number if isinstance(samples, Prepared) else self._send_batch(samples)
        answer = self._call("step", batch=number, own=[samples])
        if self.world > 1:
            for old in range(self._dropped, number + 1):
                for i in range(int(self._ahead.get(f"batch/{old}"))):
                    self._ahead.delete_key(f"batch/{old}/{i}")
            self._dropped = number + 1
        return answer

    def publish(self, folder: str | Path, keep: int = 3) -> Any:
        """`Trainer.publish`; answers with the manifest."""
        return self.take_weights().publish(folder, keep)

    def save(self, folder: str | Path, **extra: Any) -> Path:
        """`Trainer.save`; answers with the folder of the written, not yet committed, checkpoint."""
        return self.take_checkpoint(**extra).write(folder)

    def take_weights(self) -> TakenWeights:
        """`Trainer.take_weights`"""
        return self._call("take_weights")

    def take_checkpoint(self, **extra: Any) -> TakenCheckpoint:
        """`Trainer.take_checkpoint`"""
        return self._call("take_checkpoint", keywords=extra, elsewhere={})

    def load(self, path: str | Path) -> Any:
        """`Trainer.load`; answers with the checkpoint's extra."""
        return self._call("load", keywords={"path": str(path)})

    def _call(
        self, method: str, *, batch: int = -1, own: Sequence[Any] = (), keywords: dict[str, Any] | None = None,
        elsewhere: dict[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        """own: arguments of this rank alone; elsewhere: keywords of the others, where they differ."""
        self._check()
        n, self._calls = self._calls, self._calls + 1
        keywords = keywords or {}
        self._in_call = True
        try:
            if self._store is not None and self.world > 1:
                call = Call(method, batch, keywords if elsewhere is None else elsewhere)
                self._store.set(f"call/{n}", msgspec.json.encode(call).decode())
            answer = getattr(self.trainer, method)(*own, **keywords)
            self._collect(n)
        finally:
            self._in_call = False
        return answer

    def _send_batch(self, samples: list[Sample]) -> int:
        if self.world == 1:
            return -1
        refuse_twins(samples)  # here, before other ranks are told: one that raises is lost
        n, self._batches = self._batches, self._batches + 1
        data = encode_samples(samples)
        pieces = [data[at : at + _PIECE_BYTES] for at in range(0, len(data), _PIECE_BYTES)]
        for i, piece in enumerate(pieces):
            self._ahead.set(f"batch/{n}/{i}", piece)  # type: ignore[arg-type] # bytes pass, the stub says str
        self._ahead.set(f"batch/{n}", str(len(pieces)))
        return n

    def _collect(self, n: int) -> None:
        for rank in range(1, self.world):
            assert self._store is not None
            while not wait_tick(self._store, f"done/{n}/{rank}"):
                self._check()
            said = self._store.get(f"done/{n}/{rank}").decode()
            if said != "ok":
                raise RankFailed(f"learner rank {rank} failed in {said}")

    # Life and death --------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._closed.is_set():
            raise RankFailed("the rank group is closed")
        for rank, process in enumerate(self._processes, start=1):
            if process.poll() is not None:
                raise RankFailed(f"learner rank {rank} (process {process.pid}) ended with code {process.returncode}")

    def _watch(self) -> None:
        """Ends this process when a rank died and the call under way does not notice."""
        lost_at: float | None = None
        while not self._closed.wait(1.0):
            lost = any(process.poll() is not None for process in self._processes)
            if not (lost and self._in_call):
                lost_at = None
                continue
            lost_at = lost_at or time.monotonic()
            if time.monotonic() - lost_at > _STUCK_S:
                codes = [process.poll() for process in self._processes]
                print(
                    f"learner: a rank died (codes {codes}) and rank 0 waits for it; ending", file=sys.stderr, flush=True
                )
                os._exit(70)

    def close(self) -> None:
        """Ends the other ranks and the process group; may be called again."""
        if self._closed.is_set():
            return
        self._closed.set()
        if self._store is not None:
            self._store.set(f"call/{self._calls}", LEAVE)
            for process in self._processes:
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
            if dist.is_initialized():
                dist.destroy_process_group()

    def __enter__(self) -> "RankGroup":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def wait_tick(store: dist.TCPStore, key: str) -> bool:
    """True when `key` is there, False after a tick without it; a lost connection raises."""
    try:
        store.wait([key], _TICK)
    except dist.DistNetworkError:
        raise
    except dist.DistStoreError:
        return False
    return True


def meet(store: dist.TCPStore, what: str, rank: int, world: int, look: Callable[[], None]) -> None:
    """Wait, outside of any collective, until all ranks are so far: imports and loading may take them very different
    times. look: called at every tick; raises or ends where waiting is of no use."""
    store.set(f"{what}/{rank}", "yes")
    deadline = time.monotonic() + START_TIMEOUT_S
    for other in range(world):
        while not wait_tick(store, f"{what}/{other}"):
            look()
            if time.monotonic() > deadline:
                raise RankFailed(f"learner rank {rank} waited {START_TIMEOUT_S:.0f} s for rank {other} to have {what}")


def join(store: dist.TCPStore, settings: TrainerSettings, rank: int) -> None:
    kind = device_of(settings, rank)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if kind.type == "cuda" else "gloo",  # gloo for what is offloaded to the CPU
        store=dist.PrefixStore("group", store),
        rank=rank,
        world_size=settings.ranks,
        timeout=timedelta(seconds=settings.collective_timeout_s),
        device_id=kind if kind.type == "cuda" else None,
    )
