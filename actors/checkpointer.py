"""The checkpointer: turns written checkpoints into committed ones.

    consumes     facts `checkpoint_written`, folders that an earlier process left written
    produces     committed folders, facts `checkpoint_committed`, `checkpoint_refused`
    waits for    a checkpoint
    unblocked by a fact

Two phases: the learner writes and says so; here every file's hash is checked, then the folder gets its name by an
atomic rename. Only committed checkpoints are resumed from. Old ones go after the new one stands.
"""

import asyncio
import time
from pathlib import Path
from typing import ClassVar

import structlog

from actors.actor import Actor
from bus import facts
from core.checkpoints import store

log = structlog.get_logger()


class Checkpointer(Actor):
    kind: ClassVar[str] = "checkpointer"
    only_one = True

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self._committed = 0

    async def run(self) -> None:
        next_seq = 1
        while not self.stopping.is_set():
            for seq, fact in await self.bus.read_facts(next_seq):
                next_seq = seq + 1
                if fact.kind == facts.CHECKPOINT_WRITTEN:
                    # By its name: the fact may be from when the run lay, or was called from, elsewhere.
                    written = self.folder.checkpoints / Path(fact.data["folder"]).name
                    await self._commit(written, int(fact.data["step"]))

    async def _commit(self, written: Path, step: int) -> None:
        if not await asyncio.to_thread(written.exists):
            return  # committed before this process started, or replaced by a later incarnation's
        started = time.monotonic()
        try:
            await asyncio.to_thread(store.verify, written)
        except store.Damaged as error:
            log.error("checkpoint refused", folder=written.name, why=str(error), fact=facts.CHECKPOINT_REFUSED)
            await self.bus.fact(facts.CHECKPOINT_REFUSED, step=step, folder=str(written), reason=str(error))
            return
        folder = await asyncio.to_thread(store.commit, written)
        await asyncio.to_thread(store.retain, self.folder.checkpoints, self.config.checkpoints.keep)
        self._committed += 1
        await self.bus.fact(
            facts.CHECKPOINT_COMMITTED,
            step=step,
            folder=str(folder),
            seconds=time.monotonic() - started,
            oldest_position=await asyncio.to_thread(store.kept_from, self.folder.checkpoints),
        )
        log.info("checkpoint committed", step=step)

    def gauges(self) -> dict[str, float]:
        return {"committed_checkpoints": float(self._committed)}
