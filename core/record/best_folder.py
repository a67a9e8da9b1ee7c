"""The folder that `kernelmill best` makes: for each task its best kernel, judged again.

    best/best.json                       a row for each task, and what it was judged with
    best/starter__l1_relu/kernel.py      the kernel as the policy wrote it
    best/starter__l1_relu/reference.py   the task's PyTorch module
    best/starter__l1_relu/verdict.json   its verdict of now

A row stands in best.json only when its files stand, so what is there after a crash or a Ctrl-C is whole, and the next
call goes on from it. A row that was judged with other settings, packages or on another GPU is made again when it is
asked for, and says until then what it was judged with.
"""

import contextlib
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from core import plain_files
from core.evaluation.verdict import Verdict
from core.identity import digest, digest_json
from core.record import files
from core.record.best import Kernel
from core.record.files import RecordError
from core.record.one_writer import one_writer, refuse_link_to_nothing

INDEX = "best.json"
KERNEL, REFERENCE, VERDICT = "kernel.py", "reference.py", "verdict.json"
MOST_CHARACTERS = 120
"""Of a folder's name."""
State = Literal["kept", "failed", "unsupported", "unjudged"]
_PLAIN = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)*")


@contextlib.contextmanager
def locked(root: Path) -> Iterator[None]:
    """The folder, made where it is absent, is this process's own. Raises RecordError where another one writes there, or
    where it can't be."""
    refuse_link_to_nothing(root)
    _read(root)
    with one_writer(root, "best"):
        yield


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One task."""

    task_id: str
    level: int
    state: State
    """`failed`: none of those that passed in the run passed again. `unsupported`: this judge can't tell.
    `unjudged`: our own trouble; the next call tries again."""
    judged: tuple[str, ...]
    """Candidate keys of the kernels that were judged again, the fastest of the run first."""
    judge: str
    """What they were judged with: a key of `Index.judges`."""
    folder: str = ""
    """Of what is kept."""
    episode: str = ""
    turn: int = 0
    version: int = 0
    times: int = 0
    speedup: float | None = None
    speedup_low: float | None = None
    speed_kind: str = ""
    runtime_ms: float | None = None
    baseline_ms: float | None = None
    speedup_in_run: float | None = None
    """The same kernel's when the run judged it."""
    why: str = ""
    """For what is not kept: the verdict of the fastest, in a line."""


class Index(msgspec.Struct, frozen=True, kw_only=True):
    """best.json."""

    run: str
    judges: dict[str, dict[str, Any]] = {}
    """By their digests: settings, packages and device, whatever decides a verdict or its figures."""
    rows: tuple[Row, ...] = ()


class BestFolder:
    """Opens the folder, which may be absent; raises RecordError when something else stands there."""

    def __init__(self, root: Path, run: str) -> None:
        self.root, self._run = root, run
        known = _read(root) or Index(run=run)
        if known.run != run:
            raise RecordError(f"{root} holds kernels of the run {known.run!r}, not of {run!r}: choose another --out")
        self._judges, self._judge = dict(known.judges), ""
        self._rows = {row.task_id: row for row in known.rows}

    def judge_with(self, judge: dict[str, Any]) -> None:
        """What the rows are judged with from now on."""
        self._judge = digest_json(judge, size=4)
        self._judges[self._judge] = judge

    @property
    def rows(self) -> list[Row]:
        return [self._rows[task_id] for task_id in sorted(self._rows)]

    def row(self, task_id: str) -> Row:
        return self._rows[task_id]

    def stands(self, task_id: str, judged: tuple[str, ...]) -> bool:
        """Whether this task's row is of these kernels, and its files are there."""
        row = self._rows.get(task_id)
        if row is None or row.judge != self._judge or row.state == "unjudged":
            return False
        if row.judged[: len(judged)] != judged:  # more may have been judged
            return False
        files = (KERNEL, REFERENCE, VERDICT)
        return row.state != "kept" or all((self.root / row.folder / name).is_file() for name in files)

    def keep(self, kernel: Kernel, reference: str, verdict: Verdict, judged: tuple[str, ...]) -> None:
        name = folder_name(kernel.task_id)
        aside = self.root / f".{name}.new"
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        (aside / KERNEL).write_bytes(kernel.source.encode("utf-8", "replace"))
        (aside / REFERENCE).write_bytes(reference.encode("utf-8", "replace"))
        (aside / VERDICT).write_bytes(msgspec.json.format(msgspec.json.encode(verdict), indent=1) + b"\n")
        shutil.rmtree(self.root / name, ignore_errors=True)
        aside.rename(self.root / name)
        self._put(
            Row(
                task_id=kernel.task_id,
                level=kernel.level,
                state="kept",
                judged=judged,
                judge=self._judge,
                folder=name,
                episode=kernel.episode,
                turn=kernel.turn,
                version=kernel.version,
                times=kernel.times,
                speedup=verdict.speedup,
                speedup_low=verdict.speedup_low,
                speed_kind=verdict.speed_kind,
                runtime_ms=verdict.runtime_ms,
                baseline_ms=verdict.baseline_ms,
                speedup_in_run=kernel.verdict.speedup,
            )
        )

    def refuse(self, kernel: Kernel, verdict: Verdict, judged: tuple[str, ...]) -> None:
        """None of the task's kernels passed again; `kernel` is the fastest, `verdict` what it got."""
        states: dict[str, State] = {"infra": "unjudged", "unsupported": "unsupported"}
        said = verdict.feedback.strip().partition("\n")[0]
        self._put(
            Row(
                task_id=kernel.task_id,
                level=kernel.level,
                state=states.get(verdict.kind, "failed"),
                judged=judged,
                judge=self._judge,
                why=f"{verdict.kind} {verdict.category}: {said}"[:200],
            )
        )
        shutil.rmtree(self.root / folder_name(kernel.task_id), ignore_errors=True)

    def _put(self, row: Row) -> None:
        self._rows[row.task_id] = row
        used = {one.judge for one in self._rows.values()}
        judges = {key: judge for key, judge in self._judges.items() if key in used}
        index = Index(run=self._run, judges=judges, rows=tuple(self.rows))
        self.root.mkdir(parents=True, exist_ok=True)
        files.replace(self.root / INDEX, msgspec.json.format(msgspec.json.encode(index), indent=1) + b"\n")


def folder_name(task_id: str) -> str:
    """`starter/l1_relu` -> `starter__l1_relu`; an id that is no plain path, or could be taken for another's, has its
    digest behind it."""
    name = task_id.replace("/", "__")
    if _PLAIN.fullmatch(task_id) and "__" not in task_id and len(name) <= MOST_CHARACTERS:
        return name
    plain = re.sub(r"[^A-Za-z0-9_.-]", "_", name).lstrip(".-_")[:MOST_CHARACTERS]
    return f"{plain or 'task'}-{digest(task_id, size=4)}"


def _read(root: Path) -> Index | None:
    """What an earlier call left; None for no folder, or an empty one."""
    path = root / INDEX
    if not path.exists():
        if root.exists() and not (root.is_dir() and all(file.name.startswith(".") for file in root.iterdir())):
            raise RecordError(f"{root} is there and holds no {INDEX}: choose a new folder by --out")
        return None
    try:
        return msgspec.json.decode(plain_files.read(path, str(path), plain_files.ENDLESS), type=Index)
    except (plain_files.NotPlain, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RecordError(f"{path} can't be read: {error}: remove {root}, or choose a new folder by --out") from None
