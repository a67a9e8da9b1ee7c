"""Which of a run's tasks may be trained on: each is audited before its first admission, in a worker thread.

The project's own sources (`starter`, `composed`) are sound by construction and by test, and are not audited. Audits are
kept in the run's folder before they count, so a sampler that restarts leaves the same tasks out.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import structlog

from core.evaluation.audit.auditor import Auditor
from core.tasks.loading import load_tasks, told
from core.tasks.rows import Refused
from core.tasks.task import Task

log = structlog.get_logger()
OWN = ("starter", "composed")


class SoundTasks:
    """The tasks of a run's sources, and the judgement on each."""

    def __init__(
        self, sources: Sequence[Mapping[str, Any]], backend: str, auditor: Auditor | None, *, skip: bool = False
    ) -> None:
        """
        Args:
            auditor: None keeps every task.
            skip: leave out what is not a task, instead of raising TaskError.
        """
        self.refused: list[Refused] = []
        """With `skip`: what was left out."""
        self.all = load_tasks(sources, backend, refused=self.refused if skip else None)
        if self.refused:
            log.warning("refused tasks are left out", why=told(self.refused, "train"))
        self._auditor = auditor
        own = [source for source in sources if source["kind"] in OWN]
        unaudited = self.all if auditor is None else load_tasks(own, backend) if own else []
        self._usable = {(task.task_id, task.source): True for task in unaudited}
        self.left_out: dict[str, str] = {}
        """task id -> why."""

    async def usable(self, task: Task) -> bool:
        """Whether a task may be admitted. One that can't be audited may: the judge will say what is wrong with it."""
        key = task.task_id, task.source
        if key not in self._usable:
            assert self._auditor is not None
            audit = await asyncio.to_thread(self._auditor.audit, task)
            self._usable[key] = not audit.flagged
            if audit.flagged:
                self.left_out[task.task_id] = audit.reason
                log.warning("task left out of training", task=task.task_id, status=audit.status, why=audit.reason)
            elif audit.status == "unknown":
                log.warning("task could not be audited", task=task.task_id, why=audit.reason)
        return self._usable[key]

    def stop(self) -> None:
        """End the auditing process; what waits for it ends with an error."""
        if self._auditor:
            self._auditor.stop()
