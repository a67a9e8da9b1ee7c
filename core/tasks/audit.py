"""What the audit of a task says: does an answer that computes nothing pass as right?

A task is *degenerate* when zeros, a constant, the output for other inputs or an input itself is within tolerance of its
output: a policy would be paid for it. A margin is the largest error of such an answer in units of what the rule allows,
so 1 or less passes, and 50 misses by a factor of 50.

`ours` is the judge's rule (`core.evaluation.tolerance`, at the task's own dtype) and decides; the others say
what would pass under the tolerances that other systems use. `core.evaluation.audit.auditor` makes audits; this is
their plain form and the file in which they are kept.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from core.identity import digest
from core.tasks import files
from core.tasks.task import Task

VERSION = 2
"""Grows when the audit's answer to the same source may change; then what is kept counts no more."""
OURS = "ours"
RULES = ("allclose_1e-2", "allclose_1e-3", "allclose_1e-4", "bf16_1e-2", "bf16_2e-2", "scaled", "scaled_bf16", OURS)
"""allclose_T: |got - wanted| <= T + T |wanted| in float32; bf16_T: the same with both rounded to bfloat16. scaled: the
judge's rule at the task's dtype, on the task's own inputs and perturbed parameters; scaled_bf16: the same for the
module and its inputs in bfloat16 (absent where it does not run so). ours: scaled, and as the judge does also on inputs
of another distribution, so that relu is not the identity where `get_inputs` gives nothing negative."""
ANSWERS = ("zeros", "constant", "stale", "identity")
"""constant: every element is the output's mean (of another draw's output where there is only one element). stale: the
output for other inputs of the same distribution, with the same weights. identity: an input of the output's shape."""
STATUSES = ("sound", "degenerate", "noise", "unknown")
Status = Literal["sound", "degenerate", "noise", "unknown"]
FLAGS = ("degenerate", "noise")
MISS = 1e9
"""Margins end here; also that of an answer that is wrong where the rule allows nothing (integers, infinities)."""

_BEGINS = b'{"task_id":"'
"""How a kept audit's line begins, also one that was cut off: what does not is somebody else's file."""

Sizes = dict[str, tuple[int | list[int], int | list[int]]]


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """The audit of one task."""

    task_id: str
    key: str
    """Of the source and the audit's version (`audit_key`)."""
    status: Status
    """noise: its output is rounding error, so that even its own answer is not within our tolerance. unknown: it could
    not be run, or only at sizes that say too little."""
    reason: str = ""
    """Why it is not sound."""
    scaled: Sizes = {}
    """Constants that were made smaller: name -> (own value, value used)."""
    training: bool = True
    """Mode of the module when it was audited; eval mode only where train mode draws at random."""
    outputs: tuple[str, ...] = ()
    """Dtype and shape of every output at the sizes used."""
    margins: dict[str, dict[str, float]] = {}
    """rule -> answer -> margin; answers that the task does not admit (no input of the output's shape) are absent."""
    own: dict[str, float] = {}
    """rule -> margin of the task's own output in its dtype."""
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def flagged(self) -> bool:
        """Stays out of training."""
        return self.status in FLAGS

    def best(self, rule: str = OURS) -> tuple[str, float]:
        """The answer that comes closest under a rule, and its margin; ("", MISS) where nothing was measured."""
        margins = self.margins.get(rule, {})
        return min(margins.items(), key=lambda pair: pair[1]) if margins else ("", MISS)

    def passing(self, rule: str = OURS) -> tuple[str, ...]:
        """Answers that pass under a rule."""
        return tuple(answer for answer, margin in self.margins.get(rule, {}).items() if margin <= 1)


def audit_key(source: str, profile: str = "cpu", share: float = 1.0) -> str:
    """Names what an audit is about: equal sources at equal sizes have equal audits. share: of the audit's budget."""
    return digest("audit", str(VERSION), profile, f"{share:g}", source, size=12)


MAX_KEPT = 1 << 30
"""Bytes of a file of audits: of some half a million."""


class KeptError(Exception):
    """A file that audits can't be kept in; the text is one line that names it."""


class Kept:
    """Audits in a file, one JSON line each, so that no source is audited twice and a restart decides alike."""

    def __init__(self, path: Path | None) -> None:
        """
        Raises:
            KeptError: what is there is no file of audits, or can't be read or added to. It is left as it was.
        """
        self.path = path
        self.torn = 0
        """Bytes of a last audit that was not written to its end: it is made again."""
        self._known: dict[str, Audit] = {}
        found = files.kind(path) if path else files.NOTHING
        if path and found == files.FILE:
            self._read(path)
        elif path and found != files.NOTHING:
            raise KeptError(f"{files.shown(path)}: {found}, wanted a file of kept audits, or a new one")

    def _read(self, path: Path) -> None:
        shown = files.shown(path)
        try:
            if (size := path.stat().st_size) > MAX_KEPT:
                raise KeptError(f"{shown}: {size:,} bytes; at most {MAX_KEPT:,} are read")
            with path.open("r+b") as file:
                data = file.read()
                *lines, rest = data.split(b"\n")
                for number, line in enumerate(lines, start=1):
                    audit = _audit_in(line)
                    if audit is None:
                        raise KeptError(f"{shown}:{number}: {_no_audit(line)}")
                    self._known[audit.key] = audit
                if rest[: len(_BEGINS)] != _BEGINS[: len(rest)]:
                    raise KeptError(f"{shown}:{len(lines) + 1}: {_no_audit(rest)}")
                if rest:  # a kill cut the last line off
                    self.torn = len(rest)
                    file.truncate(len(data) - len(rest))
        except OSError as error:
            raise KeptError(f"{shown}: can't be read and written ({error.strerror or error})") from None

    def get(self, task: Task, profile: str, share: float = 1.0) -> Audit | None:
        """The kept audit of a task's source, under this task's id."""
        found = self._known.get(audit_key(task.source, profile, share))
        return msgspec.structs.replace(found, task_id=task.task_id) if found else None

    def put(self, audit: Audit) -> None:
        """Keep one; it is on disk when this returns. Raises KeptError where that can't be done."""
        self._known[audit.key] = audit
        if self.path:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with self.path.open("ab") as file:
                    file.write(msgspec.json.encode(audit) + b"\n")
            except OSError as error:
                raise KeptError(
                    f"{files.shown(self.path)}: can't be written ({error.strerror or error}); the audits before "
                    f"{audit.task_id} are kept"
                ) from None


def _audit_in(line: bytes) -> Audit | None:
    try:
        return msgspec.json.decode(line, type=Audit)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _no_audit(line: bytes) -> str:
    got = repr(line[:40].decode(errors="replace"))
    return f"no kept audit, got {got}; wanted a file that `audit --keep` or a run wrote: name one, or a new file"


def counts(audits: Sequence[Audit]) -> dict[str, dict[str, int]]:
    """rule -> how many tasks each answer passes, and `any` of them; `audited` tasks are the base."""
    done = [audit for audit in audits if audit.margins]
    table = {}
    for rule in RULES:
        passing = [audit.passing(rule) for audit in done]
        table[rule] = {answer: sum(answer in found for found in passing) for answer in ANSWERS}
        table[rule]["any"] = sum(bool(found) for found in passing)
    return table


def summary(audits: Sequence[Audit]) -> Iterator[str]:
    """Lines for people: counts by status and by rule."""
    numbers = [(sum(audit.status == status for audit in audits), status) for status in STATUSES]
    audited = sum(bool(audit.margins) for audit in audits)
    yield f"{len(audits)} tasks: {', '.join(f'{number} {status}' for number, status in numbers)}"
    yield f"of {audited} audited, how many accept each answer (rule `{OURS}` decides):"
    yield f"{'rule':14}" + "".join(f"{answer:>10}" for answer in (*ANSWERS, "any"))
    for rule, row in counts(audits).items():
        yield f"{rule:14}" + "".join(f"{row[answer]:>10}" for answer in (*ANSWERS, "any"))


def as_json(audits: Sequence[Audit], **facts: object) -> str:
    """The whole table as JSON: facts about the source, counts, one short line per task: its margins, of three digits,
    in the order of `answers`."""
    head = json.dumps({**facts, "answers": ANSWERS, "counts": counts(audits)}, indent=1)
    rows = []
    for audit in audits:
        row = {name: value for name, value in msgspec.to_builtins(audit).items() if value not in ("", {}, [], ())}
        row.pop("key")
        row["margins"] = {
            rule: [float(f"{margins[answer]:.3g}") if answer in margins else None for answer in ANSWERS]
            for rule, margins in audit.margins.items()
        }
        row["own"] = {rule: float(f"{margin:.3g}") for rule, margin in audit.own.items()}
        rows.append(json.dumps(row, separators=(",", ":")))
    return head[:-2] + ',\n "tasks": [\n  ' + ",\n  ".join(rows) + "\n ]\n}"
