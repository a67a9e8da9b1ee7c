"""Held-out rounds: which policy version is evaluated next, which groups are asked for, and what came of them.

A round is one version: every held-out task once, as a group of its own whose id is made from the version and the task,
so that asking again is harmless. One round stands at a time; it is finished before the next begins, with the
version that is held then, so a slow evaluation leaves versions out and never piles up. At most `in_flight` groups are
asked for and not answered. Versions only rise: what was begun is not begun again, whatever was rolled back.

Groups are no training groups: nothing here is admitted, charged or in the ledger.
"""

from collections.abc import Sequence
from typing import Any

from core.episodes.heldout_figures import HeldOutEpisode, round_figures
from core.identity import digest


def heldout_group(run_id: str, version: int, task_id: str) -> str:
    return digest("held-out", run_id, str(version), task_id)


class HeldOutRounds:
    """Fed by who follows the run (`answered`, `begin`, `close`); asked what is to be done. No I/O, no clock."""

    def __init__(
        self, run_id: str, task_ids: Sequence[str], *, every_steps: int, total_steps: int, in_flight: int
    ) -> None:
        self._run_id, self._task_ids = run_id, list(task_ids)
        self._every_steps, self._total_steps, self._in_flight = every_steps, total_steps, in_flight
        self.open: int | None = None
        """The version whose round is under way."""
        self._last = 0
        """The newest version that was begun."""
        self._groups: dict[str, int] = {}
        """Of the open round: group id -> position of its task."""
        self._asked: dict[str, float] = {}
        """Group id -> when it was asked for, where an answer is awaited."""
        self._answers: dict[str, tuple[int, list[HeldOutEpisode]]] = {}
        """Group id -> (version that played it, its episodes); no episodes where it was given up."""

    def due(self, held: int) -> bool:
        """Is a round to begin, with the version that every generator holds? With the run's last version it ends."""
        passed = held // self._every_steps * self._every_steps > self._last
        return self.open is None and passed and held < self._total_steps and bool(self._task_ids)

    def begin(self, version: int) -> None:
        if version <= self._last:
            return
        self.open = self._last = version
        self._groups = {heldout_group(self._run_id, version, task): n for n, task in enumerate(self._task_ids)}
        self._asked, self._answers = {}, {}

    def to_ask(self) -> list[tuple[str, int]]:
        """(group id, position of its task) of what may be asked for now."""
        free = self._in_flight - len(self._asked)
        left = [(gid, n) for gid, n in self._groups.items() if gid not in self._asked and gid not in self._answers]
        return left[: max(0, free)]

    def asked(self, group_id: str, at: float) -> None:
        self._asked[group_id] = at

    def answered(self, group_id: str, version: int, episodes: Sequence[HeldOutEpisode]) -> None:
        """The first answer counts; one of another round is passed over. No episodes: the group was given up."""
        if group_id in self._groups:
            self._asked.pop(group_id, None)
            self._answers.setdefault(group_id, (version, list(episodes)))

    def overdue(self, asked_before: float) -> list[str]:
        """Groups that were asked for before then and have no answer."""
        return [group_id for group_id, at in self._asked.items() if at < asked_before]

    @property
    def waiting(self) -> int:
        return len(self._asked)

    @property
    def complete(self) -> bool:
        return self.open is not None and len(self._answers) == len(self._groups)

    def result(self, max_turns: int) -> dict[str, Any]:
        """The data of an `evaluated` fact."""
        versions = [version for version, episodes in self._answers.values() if episodes]
        episodes = [episode for _, found in self._answers.values() for episode in found]
        return {
            "version": self.open,
            "oldest": min(versions, default=self.open),
            "newest": max(versions, default=self.open),
            "tasks": len(versions),
            "missing": len(self._groups) - len(versions),
            "figures": round_figures(episodes, max_turns),
        }

    def close(self, version: int) -> None:
        """The round's result stands."""
        self._last = max(self._last, version)
        if self.open == version:
            self.open = None
            self._groups, self._asked, self._answers = {}, {}, {}
