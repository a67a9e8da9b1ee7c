"""Figures from episodes, checked against values worked out by hand; held-out files; the table of names."""

import ast
import math
import re
from functools import cache
from pathlib import Path

import pytest

from core.columns import pack
from core.episodes.episode import Episode, Turn, tombstone
from core.episodes.heldout_figures import HeldOut
from core.episodes.metrics import METRICS, batch_metrics, markdown
from core.evaluation.verdict import Verdict
from core.record import heldout
from core.record.files import RecordError
from core.training.metrics import MAXIMA, summary, sums_width

REPOSITORY = Path(__file__).parents[3]


def turn(index: int, score: float, *, right: bool, speedup: float | None = None, version: int = 4) -> Turn:
    verdict = Verdict(
        candidate_key="k", kind="pass" if right else "fail", compiled=score > 0, correct=right, speedup=speedup
    )
    return Turn(
        index=index,
        prompt_ids=pack("ids", [1]),
        completion_ids=pack("ids", [2, 3]),
        logprobs=pack("logprobs", [-1.0, -1.0]),
        versions=pack("versions", [version, version + 1]),
        candidate="source",
        verdict=verdict,
        score=score,
    )


def episode(index: int, *turns: Turn) -> Episode:
    return Episode(group_id="g", index=index, task_id="t", turns=turns, generation_s=index + 1.0, judging_s=0.5)


BATCH = [
    episode(0, turn(0, 1.4, right=True, speedup=2.0)),
    episode(1, turn(0, 0.1, right=False), turn(1, 0.4, right=True, speedup=0.5, version=3)),
    episode(2, turn(0, 0.0, right=False), turn(1, 0.0, right=False)),
    tombstone("g", 3, "t", "infra"),
]


def test_figures_worked_out_by_hand() -> None:
    figures = batch_metrics(BATCH, version=6, max_turns=3)
    assert figures["reward/mean"] == pytest.approx((1.4 + 0.4 + 0.0) / 3)
    assert figures["reward/std"] == pytest.approx(math.sqrt((0.8**2 + 0.2**2 + 0.6**2) / 3))
    assert figures["correct/any"] == pytest.approx(2 / 3)
    assert [figures[f"correct/by_turn_{n}"] for n in (1, 2, 3)] == pytest.approx([1 / 3, 2 / 3, 2 / 3])
    assert figures["compiled/turn_1"] == pytest.approx(2 / 3)
    assert figures["repair/turn_2"] == pytest.approx(1 / 2)
    assert figures["speedup/geomean"] == pytest.approx(1.0)
    assert figures["turns/mean"] == pytest.approx(5 / 3)
    assert figures["tokens/completion_mean"] == pytest.approx(10 / 3)
    assert (figures["staleness/mean"], figures["staleness/max"]) == (pytest.approx(7 / 3), 3.0)
    assert (figures["episodes/trained"], figures["episodes/rejected"]) == (3, 1)
    assert (figures["time/generation_s"], figures["time/judging_s"]) == (2.0, 0.5)


def test_a_figure_that_nothing_speaks_for_is_absent() -> None:
    assert batch_metrics([tombstone("g", 0, "t", "infra")]) == {}
    assert batch_metrics([tombstone("g", 0, "t", "infra")], version=1) == {
        "episodes/trained": 0.0,
        "episodes/rejected": 1.0,
    }
    solved = batch_metrics([episode(0, turn(0, 0.4, right=True))])
    assert "repair/turn_2" not in solved and "speedup/geomean" not in solved and "staleness/max" not in solved


def test_every_figure_is_in_the_table_and_the_page_agrees() -> None:
    names = {metric.name for metric in METRICS}
    figures = batch_metrics(BATCH, version=6)
    assert {name if "by_turn" not in name else "correct/by_turn_N" for name in figures} <= names
    assert len(names) == len(METRICS)
    corrections = ["icepop"]
    step = summary([1.0] * sums_width(corrections), [1.0] * len(MAXIMA), corrections)
    varying = {"lag/[^/]+/": "lag/LAG/", "masked_share/.*": "masked_share/CORRECTION"}
    for pattern, name in varying.items():
        step = {re.sub(pattern, name, key): value for key, value in step.items()}
    assert set(step) <= names and "lag/LAG/kl_k3" in step
    assert (REPOSITORY / "docs" / "metrics.md").read_text() == markdown()


@cache
def trees() -> list[tuple[Path, ast.Module]]:
    sources = [*(REPOSITORY / "actors").glob("*.py"), *(REPOSITORY / "core").rglob("*.py")]
    sources = [path for path in sources if "starter" not in path.parts]  # tasks and their kernels
    return [(path, ast.parse(path.read_text())) for path in sources]


def keys(tree: ast.AST) -> set[str]:
    """Patterns of the strings that code below writes under: keys of dictionaries, and the parts of a step's clock."""
    nodes: list[ast.expr | None] = []
    for part in ast.walk(tree):
        if isinstance(part, ast.Dict):
            nodes += part.keys
        elif isinstance(part, ast.DictComp):
            nodes.append(part.key)
        elif isinstance(part, ast.Subscript) and isinstance(part.ctx, ast.Store):
            nodes.append(part.slice)
        elif isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) and part.func.attr == "took":
            nodes += part.args[:1]
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(re.escape(node.value))
        elif isinstance(node, ast.JoinedStr) and isinstance(node.values[0], ast.Constant):
            found.add("".join(re.escape(v.value) if isinstance(v, ast.Constant) else ".+" for v in node.values))
    return found


def stage_times(path: Path, tree: ast.AST) -> set[str]:
    """Actors name the learner's stages by whole names, wherever they stand."""
    words = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and path.parent.name == "actors"]
    return {word for word in words if isinstance(word, str) and re.fullmatch(r"time/\w+", word)}


def test_what_actors_report_is_in_the_table() -> None:
    """Keys of every `gauges` method, and the learner's stage times."""
    told: set[str] = set()
    for path, tree in trees():
        told |= stage_times(path, tree)
        methods = [node for part in tree.body if isinstance(part, ast.ClassDef) for node in part.body]
        for node in (*tree.body, *methods):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in ("gauges", "_beat"):
                told |= keys(node)
    assert {"loop_lag_ms", "verdicts_total", "time/wait_s", "judged_.+"} <= told, "the search finds what is there"
    assert not [key for key in told if not any(re.fullmatch(key, metric.name) for metric in METRICS)]


def test_what_is_in_the_table_is_reported() -> None:
    """A figure that no code writes any more would stay on the page for ever."""
    told: set[str] = set()
    for path, tree in trees():
        told |= stage_times(path, tree) | keys(tree)
    assert "time/unheard_of_s" not in told and "lag/.+/kl_k3" in told
    names = [metric.name.removeprefix("heldout/") for metric in METRICS if metric.name != "heldout/FIGURE"]
    assert not [name for name in names if not any(re.fullmatch(key, name) for key in told)]


def test_held_out_files_keep_figures_and_kernels(tmp_path: Path) -> None:
    made = HeldOut.of(BATCH, version=6, step=6, seed=3, sources={"t": "class Model: ..."})
    heldout.save(made, tmp_path / heldout.AFTER)
    read = heldout.load(tmp_path / heldout.AFTER)
    assert read == made
    assert read is not None and (read.tasks, read.figures) == (1, batch_metrics(BATCH))
    best = read.episodes[1].best
    assert best is not None and best.score == 0.4 and best.verdict is not None and best.verdict.speedup == 0.5
    assert read.episodes[3].best is None
    assert heldout.load(tmp_path / heldout.BEFORE) is None
    (tmp_path / heldout.BEFORE).write_text('{"version": "x"}')
    with pytest.raises(RecordError, match=r"heldout-before.json is no held-out evaluation"):
        heldout.load(tmp_path / heldout.BEFORE)
