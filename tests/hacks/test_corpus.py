"""Every hack is refused for a reason that fits, no honest kernel is refused.

A file is a candidate; its docstring says what it does, for which task, and which categories may refuse it. The verdicts
come from `corpus.Verdicts`, which has them made side by side.
"""

from collections.abc import Mapping
from pathlib import Path

import pytest
from corpus import field

from core.evaluation.verdict import Verdict

HERE = Path(__file__).parent


def _cases(folder: str) -> list[object]:
    return [pytest.param(path, id=path.stem) for path in sorted((HERE / folder).glob("*.py"))]


@pytest.mark.parametrize("path", _cases("refused"))
def test_hack_is_refused(verdicts: Mapping[Path, Verdict], path: Path) -> None:
    verdict = verdicts[path]
    assert verdict.kind == "fail", verdict
    assert verdict.category in field(path.read_text(), "expect").split(", "), verdict.feedback
    assert not verdict.correct


@pytest.mark.parametrize("path", _cases("honest"))
def test_honest_kernel_passes(verdicts: Mapping[Path, Verdict], path: Path) -> None:
    verdict = verdicts[path]
    assert verdict.kind == "pass", verdict.feedback
    assert verdict.correct and verdict.compiled
    assert verdict.speed_kind == "modelled" and verdict.speedup is not None and verdict.speedup > 0
