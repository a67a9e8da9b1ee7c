"""The file that a replay of a run's kernels makes: a line for each kernel, its verdict then and now.

    replay/kernels.jsonl     one JSON object a line, the newest verdict of each kernel
    replay/kernels.json      counts, figures before and after, and what was judged with

A line is written when its verdict is there, so that what stands after a crash or a Ctrl-C is taken over by the next
call, where the judge is the same. At the end the file is put in order and says how often each kernel was written.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from core.evaluation.verdict import Verdict
from core.identity import digest
from core.record import files
from core.record.best import Kernel
from core.record.files import RecordError
from core.record.rejudged import CHANGES, Difference, Score, Which, difference

KERNELS = "kernels.jsonl"


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel."""

    task_id: str
    kernel: str
    """Digest of its source."""
    change: Difference
    was: Verdict
    now: Verdict
    judge: str
    """What `now` was judged with: a digest of settings, packages, device and the judge's own code."""
    key: str = ""
    """The candidate's, under these settings."""
    level: int = 1
    episode: str = ""
    """Where the run wrote it first: `group/index`."""
    turn: int = 0
    version: int = 0
    times: int = 1
    """How often the run wrote it, in the episodes that were read."""
    score_was: float | None = None
    score_now: float | None = None
    source: str = ""
    """Of a kernel that changed."""

    @property
    def which(self) -> Which:
        return self.task_id, self.kernel


def row_of(kernel: Kernel, now: Verdict, *, judge: str, key: str, score: Score | None = None) -> Row:
    """score: the reward of now; the run's own score is not looked at."""
    change = difference(kernel.verdict, now)
    return Row(
        task_id=kernel.task_id,
        kernel=digest(kernel.source),
        change=change,
        was=kernel.verdict,
        now=now,
        judge=judge,
        key=key,
        level=kernel.level,
        episode=kernel.episode,
        turn=kernel.turn,
        version=kernel.version,
        times=kernel.times,
        score_was=None if score is None else score(kernel.verdict),
        score_now=None if score is None else score(now),
        source=kernel.source if change in CHANGES else "",
    )


class KernelFile:
    """Opens it, which may be absent; for one writer at a time (`one_writer`). Raises RecordError for what is none."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / KERNELS
        self._rows: dict[Which, Row] = {}
        decoder, whole = msgspec.json.Decoder(Row), 0
        for line, whole in files.lines(self.path):  # noqa: B007
            try:
                row = decoder.decode(line)
            except msgspec.DecodeError as error:
                raise RecordError(
                    f"{self.path} can't be read: {error}: remove it, or choose a new folder by --out"
                ) from None
            self._rows[row.which] = row
        folder.mkdir(parents=True, exist_ok=True)
        self._file = files.Appender(self.path, whole)

    def standing(self, which: Which, *, judge: str, key: str) -> Row | None:
        """This kernel's row, if the same judge gave it a verdict that is no trouble of ours."""
        row = self._rows.get(which)
        return row if row is not None and (row.judge, row.key) == (judge, key) and row.now.kind != "infra" else None

    def add(self, row: Row) -> None:
        self._rows[row.which] = row
        self._file.append([msgspec.json.encode(row) + b"\n"])

    def finish(self, rows: Iterable[Row]) -> None:
        """Put these in place of what stands of their kernels, and the whole file in order."""
        self._rows |= {row.which: row for row in rows}
        self.close()
        lines = [msgspec.json.encode(self._rows[which]) + b"\n" for which in sorted(self._rows)]
        files.replace(self.path, b"".join(lines))

    def close(self) -> None:
        self._file.close()


def counts(rows: Iterable[Row]) -> Mapping[tuple[str, str], tuple[int, int]]:
    """(verdict then, verdict now), each in two words -> (kernels, turns); the most frequent first."""
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for row in rows:
        pair = (in_words(row.was), in_words(row.now))
        kernels, turns = found.get(pair, (0, 0))
        found[pair] = (kernels + 1, turns + row.times)
    return dict(sorted(found.items(), key=lambda item: (-item[1][1], item[0])))


def in_words(verdict: Verdict) -> str:
    """`pass`, `fail wrong_value`"""
    return f"{verdict.kind} {verdict.category}".strip()
