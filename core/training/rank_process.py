"""A rank other than 0, as a process of its own: `python -m core.training.rank_process PORT RANK PARENT`.

It takes part in the calls of `core.training.ranks.RankGroup` until it is told to leave or its parent is gone. A thread
makes batches ready as they come, beside the step before, so that the main thread is free for collectives.
"""

import os
import signal
import sys
import threading
from datetime import timedelta

import msgspec
import torch
import torch.distributed as dist

from core.training.batch import Prepared
from core.training.lifeline import die_with_parent, orphaned
from core.training.ranks import LEAVE, START_TIMEOUT_S, Call, decode_samples, join, meet, wait_tick
from core.training.settings import TrainerSettings
from core.training.trainer import Trainer


class _Ahead(threading.Thread):
    """Decodes, plans and packs the batches of a rank other than 0 as they are sent, beside the step before."""

    def __init__(self, port: int, trainer: Trainer) -> None:
        super().__init__(name="batches-ahead", daemon=True)
        self._store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=START_TIMEOUT_S))
        self._trainer = trainer
        self._ready: dict[int, Prepared | Exception] = {}
        self._changed = threading.Condition()

    def run(self) -> None:
        n = 0
        while True:
            while not wait_tick(self._store, f"batch/{n}"):
                pass
            found: Prepared | Exception
            try:
                pieces = int(self._store.get(f"batch/{n}"))
                data = b"".join(self._store.get(f"batch/{n}/{i}") for i in range(pieces))
                found = self._trainer.prepare(decode_samples(data))
            except Exception as error:  # told by the step that takes it, as on rank 0
                found = error
            with self._changed:
                self._ready[n] = found
                self._changed.notify()
            n += 1

    def take(self, n: int) -> Prepared:
        """Batch `n`; those before it are dropped."""
        with self._changed:
            if not self._changed.wait_for(lambda: n in self._ready, START_TIMEOUT_S):
                raise TimeoutError(f"batch {n} was not there after {START_TIMEOUT_S:.0f} s")
            found = self._ready[n]
            self._ready = {k: batch for k, batch in self._ready.items() if k > n}
        if isinstance(found, Exception):
            raise found
        return found


def serve(port: int, rank: int, parent: int) -> None:
    """The life of a rank other than 0: take part in calls until told to leave."""
    die_with_parent(parent)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=START_TIMEOUT_S))
    settings = msgspec.json.decode(store.get("settings"), type=TrainerSettings)

    def alive() -> None:
        if orphaned(parent):
            os._exit(0)

    meet(store, "started", rank, settings.ranks, alive)
    join(store, settings, rank)
    trainer = Trainer(settings, rank, settings.ranks)
    meet(store, "loaded", rank, settings.ranks, alive)
    ahead = _Ahead(port, trainer)
    ahead.start()
    n = 0
    while True:
        while not wait_tick(store, f"call/{n}"):
            alive()
        if (said := store.get(f"call/{n}").decode()) == LEAVE:
            break
        call = msgspec.json.decode(said, type=Call)
        try:
            arguments = [] if call.batch < 0 else [ahead.take(call.batch)]
            getattr(trainer, call.method)(*arguments, **call.keywords)
        except BaseException as error:
            store.set(f"done/{n}/{rank}", f"{call.method}: {type(error).__name__}: {error}")
            raise
        store.set(f"done/{n}/{rank}", "ok")
        n += 1
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for who started this, and ends it in order
    if torch.cuda.is_available():
        torch.cuda.init()
    serve(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    os._exit(0)  # the thread that waits on the store would have the interpreter's end abort this process
