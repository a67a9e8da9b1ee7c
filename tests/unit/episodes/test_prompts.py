import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.episodes import examples
from core.episodes.prompts import (
    COMPACT_FEEDBACK,
    compact_feedback,
    compact_source,
    feedback_message,
    first_messages,
    summary,
    summary_line,
)
from core.evaluation.verdict import Verdict
from core.tasks.task import Task


def _verdict(**fields) -> Verdict:
    return Verdict(candidate_key="00", **fields)


def _task(source: str, backend: str = "triton") -> Task:
    return Task(task_id="t/x", name="x", level=1, origin="t", source=source, backend=backend)


SOURCE = '''
"""A task."""
import torch
import torch.nn as nn

SLOPE = 0.1
SIZE = 64
PROFILES = {"cpu": {"SIZE": 8}}


def gate(v):
    # keeps the sign
    return v * SLOPE


class Model(nn.Module):
    """Gated."""

    def __init__(self):
        super().__init__()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Doc."""
        y: torch.Tensor = gate(x)
        return y + 1


def get_inputs():
    return [torch.randn(SIZE)]


def get_init_inputs():
    return []
'''


def test_compact_source_keeps_what_the_computation_names_and_nothing_else():
    assert compact_source(SOURCE) == (
        "SLOPE = 0.1\ndef gate(v):\n    return v * SLOPE\ndef forward(self, x):\n    y = gate(x)\n    return y + 1"
    )


def test_compact_source_keeps_a_constructor_that_does_something():
    kept = compact_source(examples.TASK)
    assert kept.startswith("def __init__(self, features):") and "self.gain" in kept and "get_inputs" not in kept


@pytest.mark.parametrize("source", ["def (", "x = 1\n", "class Model:\n    pass\n"])
def test_compact_source_leaves_what_it_does_not_understand(source):
    assert compact_source(source) == source.strip()


def test_compact_prompt_is_one_user_message_with_the_source():
    assert first_messages(_task(SOURCE), "compact") == [{"role": "user", "content": compact_source(SOURCE)}]


@pytest.mark.parametrize("backend", ["triton", "cuda"])
def test_prose_prompt_holds_the_task_an_example_and_the_wish(backend):
    (message,) = first_messages(_task(SOURCE, backend), "kernelbench")
    assert message["role"] == "user"
    assert SOURCE.strip() in message["content"] and examples.ANSWERS[backend] in message["content"]
    assert "ModelNew" in message["content"] and "```python" in message["content"]


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"kind": "pass", "speedup": 1.26}, "slow 1.3x"),
        ({"kind": "pass"}, "ok"),
        (
            {"category": "wrong_value", "feedback": "output 0 at [3, 37] got 0.31234 want 1.2e-5 (draw 2 of 3)"},
            "fail wrong_value [3,37] got 0.312 want 1.2e-05",
        ),
        (
            {"category": "wrong_value", "feedback": "first wrong element (37,): got nan, expected -inf"},
            "fail wrong_value [37] got nan want -inf",
        ),
        ({"category": "timeout", "feedback": "ran longer than 20.0 s"}, "fail timeout 20"),
        ({"category": "syntax", "feedback": "line 12: invalid syntax"}, "fail syntax 12"),
        ({"category": "no_code", "feedback": "No code block was found"}, "fail no_code"),
        (
            {"category": "wrong_value", "feedback": "output[2, 5] = -0.25, wanted 1. 3 of 64 elements are wrong."},
            "fail wrong_value [2,5] got -0.25 want 1",
        ),
        (
            {"category": "wrong_shape", "feedback": "output has shape (8, 16), wanted (8, 32)"},
            "fail wrong_shape 8 16 8 32",
        ),
    ],
)
def test_compact_feedback(fields, line):
    assert compact_feedback(_verdict(**{"kind": "fail", **fields})) == line


@given(st.text(max_size=40), st.text(max_size=400))
def test_compact_feedback_is_bounded_whatever_the_judge_writes(category, text):
    line = compact_feedback(_verdict(kind="fail", category=category, feedback=text))
    assert len(line) <= COMPACT_FEEDBACK


def test_prose_feedback_after_a_pass_tells_speed_and_asks_for_more():
    verdict = _verdict(
        kind="pass", compiled=True, correct=True, speedup=1.25, runtime_ms=0.8, baseline_ms=1.0, speed_kind="modelled"
    )
    text = feedback_message(verdict, 0.55, "kernelbench", 1)
    for part in ("Attempt 2", "Compiled: yes", "Correct: yes", "0.8 ms", "1 ms", "modelled", "1.25x", "0.55", "faster"):
        assert part in text
    assert text.endswith("```python block.")


def test_prose_feedback_after_a_failure_quotes_the_judge():
    verdict = _verdict(
        kind="fail", stage="compile", category="compile_error", feedback="line 7: unknown name `tl.relu`"
    )
    text = feedback_message(verdict, 0.0, "kernelbench", 0)
    assert "Compiled: no" in text and "`compile`: compile_error" in text and "unknown name `tl.relu`" in text
    assert "correct the kernel" in text


@pytest.mark.parametrize("backend", ["triton", "cuda"])
def test_the_plain_prompt_is_one_text_with_the_example_the_task_and_the_wish_last(backend):
    (message,) = first_messages(_task(SOURCE, backend), "kernelllm")
    text = message["content"]
    at = [text.index(part) for part in (examples.TASK, examples.ANSWERS[backend], SOURCE.strip(), "name it ModelNew")]
    assert at == sorted(at) and text.count("```") == 6 and "```python" not in text
    verdict = _verdict(kind="fail", category="wrong_value")
    assert feedback_message(verdict, 0.1, "kernelllm", 0) == feedback_message(verdict, 0.1, "kernelbench", 0)


@pytest.mark.parametrize(
    ("fields", "score", "prose", "compact"),
    [
        ({"kind": "pass", "speedup": 1.304}, 0.6, "Attempt 3: correct, 1.30x, score 0.60", "3 ok 1.30x 0.60"),
        ({"kind": "pass"}, None, "Attempt 3: correct", "3 ok"),
        ({"kind": "fail", "category": "wrong_value"}, 0.1, "Attempt 3: wrong_value, score 0.10", "3 wrong_value 0.10"),
        (
            {"kind": "fail", "category": "two\nlines", "speedup": 2.0},
            0,
            "Attempt 3: two lines, score 0.00",
            "3 two lines 0.00",
        ),
        ({"kind": "infra"}, None, "Attempt 3: infra", "3 infra"),
    ],
)
def test_a_summary_is_one_line_with_number_outcome_speed_and_score(fields, score, prose, compact):
    verdict = _verdict(**fields)
    assert summary_line(verdict, score, "kernelbench", 2) == summary_line(verdict, score, "kernelllm", 2) == prose
    assert summary_line(verdict, score, "compact", 2) == compact
    assert summary([compact, compact], "compact") == f"{compact}\n{compact}"
    assert summary([prose, prose], "kernelbench").endswith(f":\n{prose}\n{prose}")


@pytest.mark.parametrize(
    "call", [lambda: first_messages(_task(SOURCE), "x"), lambda: feedback_message(_verdict(kind="pass"), 1.0, "x", 0)]
)
def test_unknown_style_is_refused(call):
    with pytest.raises(ValueError, match="unknown prompt style 'x'; known: kernelbench, compact"):
        call()


def test_the_triton_example_is_right(tmp_path):
    (tmp_path / "task.py").write_text(examples.TASK)
    (tmp_path / "answer.py").write_text(examples.TRITON)
    check = (
        "import torch, task, answer\n"
        "torch.manual_seed(0)\n"
        "old, new = task.Model(600), answer.ModelNew(600)\n"
        "[torch.nn.init.normal_(p) for p in old.parameters()]\n"
        "new.load_state_dict(old.state_dict())\n"
        "x = torch.randn(3, 600)\n"
        "torch.testing.assert_close(new(x), old(x))\n"
    )
    env = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", check], env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
