"""Several ranks behind one object: rank 0 lives in this process, the others are processes of their own.

    ranks = RankGroup(settings)          # settings.ranks of them; one is just a trainer here
    ranks.step(samples)                  # all ranks take part; rank 0's answer comes back
    ranks.publish("weights"); ranks.close()

        this process (rank 0)                 TCP store on loopback              rank 1..N-1
        call n: method, arguments   ------>   call/n/*   -------------------->   wait by ticks, then take part
        its own part, collectives   <======== gloo / NCCL ===================>   its own part, collectives
        wait by ticks               <------   done/n/rank   <-----------------   done, or what went wrong

- Idle ranks wait on the store in ticks of a second, never inside a collective, so that no watchdog ends them however
  long the next batch takes.
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
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
import torch.distributed as dist

from core.episodes.samples import Sample
from core.training.lifeline import die_with_parent, orphaned
from core.training.settings import TrainerSettings
from core.training.trainer import Trainer, device_of

_PIECE_BYTES = 4 * 2**20
"""The store refuses values above 8 MiB."""
_TICK = timedelta(seconds=1)
_STUCK_S = 20.0
_COLLECTIVE_TIMEOUT = timedelta(minutes=10)
_START_TIMEOUT_S = 300.0


class RankFailed(RuntimeError):
    """A rank raised or died; the group can't be used any more."""


class _Call(msgspec.Struct):
    method: str
    samples: list[Sample] | None = None
    keywords: dict[str, Any] = {}


def encode_call(call: _Call) -> bytes:
    """A call as MessagePack; arrays as (dtype, bytes)."""
    return msgspec.msgpack.encode(call, enc_hook=lambda a: (a.dtype.str, a.tobytes()))


def decode_call(data: bytes) -> _Call:
    return msgspec.msgpack.decode(data, type=_Call, dec_hook=lambda _, pair: np.frombuffer(pair[1], np.dtype(pair[0])))


class RankGroup:
    """All ranks of a trainer. Not for use from several threads; make it in the thread that stays (a rank dies with the
    thread that started it). Raises RankFailed from any call once a rank is lost."""

    def __init__(self, settings: TrainerSettings, resume: str | Path | None = None) -> None:
        """resume: folder of a committed checkpoint to continue from."""
        self.settings = settings
        self.world = settings.ranks
        self._calls = 0
        self._processes: list[subprocess.Popen[bytes]] = []
        self._in_call = False
        self._closed = threading.Event()
        self._store = (
            dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if settings.sharded else None
        )
        if self._store is not None:
            self._spawn(self._store)
            _join(self._store, settings, 0)
        self.trainer = Trainer(settings, 0, self.world)
        if resume is not None:
            self.load(resume)

    def _spawn(self, store: dist.TCPStore) -> None:
        store.set("settings", msgspec.json.encode(self.settings).decode())
        here = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(p for p in [here, os.environ.get("PYTHONPATH", "")] if p)
        for rank in range(1, self.world):
            command = [sys.executable, "-m", "core.training.ranks", str(store.port), str(rank), str(os.getpid())]
            self._processes.append(subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}))
        if self._processes:
            threading.Thread(target=self._watch, name="rank-watch", daemon=True).start()

    # Calls that all ranks take part in -----------------------------------------------------------------------------

    @property
    def version(self) -> int:
        return self.trainer.version

    def step(self, samples: Sequence[Sample]) -> dict[str, float]:
        """`Trainer.step`"""
        return self._call("step", list(samples))

    def publish(self, folder: str | Path, keep: int = 3) -> Any:
        """`Trainer.publish`; answers with the manifest."""
        return self._call("publish", folder=str(folder), keep=keep)

    def save(self, folder: str | Path, **extra: Any) -> Path:
        """`Trainer.save`; answers with the folder of the written, not yet committed, checkpoint."""
        return self._call("save", folder=str(folder), **extra)

    def load(self, path: str | Path) -> Any:
        """`Trainer.load`; answers with the checkpoint's extra."""
        return self._call("load", path=str(path))

    def _call(self, method: str, samples: list[Sample] | None = None, **keywords: Any) -> Any:
        self._check()
        n, self._calls = self._calls, self._calls + 1
        self._in_call = True
        try:
            if self.world > 1:
                self._send(n, encode_call(_Call(method, samples, keywords)))
            arguments = [] if samples is None else [samples]
            answer = getattr(self.trainer, method)(*arguments, **keywords)
            self._collect(n)
        finally:
            self._in_call = False
        return answer

    def _send(self, n: int, data: bytes) -> None:
        assert self._store is not None
        pieces = [data[at : at + _PIECE_BYTES] for at in range(0, len(data), _PIECE_BYTES)]
        for i, piece in enumerate(pieces):
            self._store.set(f"call/{n}/{i}", piece)  # type: ignore[arg-type] # bytes pass, the stub says str
        self._store.set(f"call/{n}", str(len(pieces)))

    def _collect(self, n: int) -> None:
        for rank in range(1, self.world):
            assert self._store is not None
            while not _wait(self._store, f"done/{n}/{rank}"):
                self._check()
            said = self._store.get(f"done/{n}/{rank}").decode()
            if said != "ok":
                raise RankFailed(f"learner rank {rank} failed in {said}")
        if self.world > 1:
            assert self._store is not None
            for i in range(int(self._store.get(f"call/{n}"))):
                self._store.delete_key(f"call/{n}/{i}")

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
            self._store.set(f"call/{self._calls}", "0")  # a call of no pieces: leave
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


def _wait(store: dist.TCPStore, key: str) -> bool:
    """True when `key` is there, False after a tick without it; a lost connection raises."""
    try:
        store.wait([key], _TICK)
    except dist.DistNetworkError:
        raise
    except dist.DistStoreError:
        return False
    return True


def _join(store: dist.TCPStore, settings: TrainerSettings, rank: int) -> None:
    kind = device_of(settings, rank)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if kind.type == "cuda" else "gloo",  # gloo for what is offloaded to the CPU
        store=dist.PrefixStore("group", store),
        rank=rank,
        world_size=settings.ranks,
        timeout=_COLLECTIVE_TIMEOUT,
        device_id=kind if kind.type == "cuda" else None,
    )


def serve(port: int, rank: int, parent: int) -> None:
    """The life of a rank other than 0: take part in calls until told to leave."""
    die_with_parent(parent)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=_START_TIMEOUT_S))
    settings = msgspec.json.decode(store.get("settings"), type=TrainerSettings)
    _join(store, settings, rank)
    trainer = Trainer(settings, rank, settings.ranks)
    n = 0
    while True:
        while not _wait(store, f"call/{n}"):
            if orphaned(parent):
                os._exit(0)
        pieces = int(store.get(f"call/{n}"))
        if pieces == 0:
            break
        call = decode_call(b"".join(store.get(f"call/{n}/{i}") for i in range(pieces)))
        arguments = [] if call.samples is None else [call.samples]
        try:
            getattr(trainer, call.method)(*arguments, **call.keywords)
        except BaseException as error:
            store.set(f"done/{n}/{rank}", f"{call.method}: {type(error).__name__}: {error}")
            raise
        store.set(f"done/{n}/{rank}", "ok")
        n += 1
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    if torch.cuda.is_available():
        torch.cuda.init()
    serve(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
