"""What the judge says to each kind of mistake, recorded once so that supervised data need no sandbox.

    python -m core.training.sft_feedback configs/demo-feedback.json

The file maps a kind of mistake (`core.tasks.compose_mistakes.MISTAKES`), or `slow` (right kernels in the staged style),
to verdicts of the real judge on compositions of the train side. Record again when the judge's wording changes.
"""

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from core import plain_files
from core.evaluation.verdict import Verdict
from core.tasks.compose import compositions
from core.tasks.compose_mistakes import MISTAKES, plant_kind
from core.tasks.task import Task
from core.training.sft_data import SLOW

MAX_BYTES = 64 << 20
EACH = 8
"""Verdicts recorded for each kind."""
_SEED = 90_210


def load(path: str | Path) -> dict[str, list[Verdict]]:
    """Recorded verdicts by kind. Raises FileNotFoundError, NotPlain, msgspec.ValidationError."""
    if not Path(path).is_symlink():
        Path(path).stat()
    data = plain_files.read(Path(path), "what stands there", MAX_BYTES)
    return msgspec.json.decode(data, type=dict[str, list[Verdict]])


def candidates(each: int = EACH) -> Iterator[tuple[str, Task, str]]:
    """(kind, task, kernel), `each` of every kind, each of another composition."""
    rng = random.Random(_SEED)
    left = {kind: each for kind in [*MISTAKES, SLOW]}
    for composition in compositions(_SEED, "train"):
        if not any(left.values()):
            return
        for kind in sorted(left, key=lambda k: -left[k]):  # those that few programs can show come first
            if not left[kind]:
                continue
            right = kind == SLOW
            kernel = composition.kernel("staged") if right else plant_kind(composition, rng, "fused", kind)
            if kernel is not None:
                left[kind] -= 1
                yield kind, composition.task(), kernel
                break


def record(path: str | Path, each: int = EACH) -> int:
    """Judge and write; answers with the number of verdicts. Raises RuntimeError when the judge itself is in trouble."""
    from core.evaluation.judge import Judge
    from core.evaluation.settings import JudgeSettings

    judge = Judge(JudgeSettings())
    judge.start()
    judge.wait_ready()
    found: dict[str, list[Verdict]] = {kind: [] for kind in [*MISTAKES, SLOW]}
    try:
        for kind, task, kernel in candidates(each):
            verdict = judge.judge(task, kernel, "")
            expected = "pass" if kind == SLOW else "fail"
            if verdict.kind != expected:
                raise RuntimeError(f"a kernel of kind {kind!r} should {expected}, the judge says {verdict.kind}: "
                                   f"{verdict.feedback}")  # fmt: skip
            found[kind].append(msgspec.structs.replace(verdict, wall_s=0.0))
    finally:
        judge.stop()
    lines = ",\n".join(
        f'"{kind}": [\n' + ",\n".join(msgspec.json.encode(_short(v)).decode() for v in verdicts) + "\n]"
        for kind, verdicts in found.items()
    )
    Path(path).write_text("{\n" + lines + "\n}\n")
    return sum(len(verdicts) for verdicts in found.values())


def _short(verdict: Verdict) -> dict[str, object]:
    """The fields that differ from a verdict's defaults."""
    plain = msgspec.structs.asdict(verdict)
    default = msgspec.structs.asdict(Verdict(candidate_key="", kind=verdict.kind))
    kept = {name: value for name, value in plain.items() if value != default[name]}
    return {"candidate_key": "", "kind": verdict.kind, **kept}


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m core.training.sft_feedback FILE.json")
    print(f"{record(sys.argv[1])} verdicts -> {sys.argv[1]}")
