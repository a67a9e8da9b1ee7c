"""A call that is wrong ends the run: what comes later is not waited for, and the verdict is about that call."""

import msgspec
import pytest
from right_answer import TASK, candidate

from core.evaluation.judge import Judge

ENDLESS_LATER = """
    def __call__(self, x):
        self.calls = getattr(self, "calls", 0) + 1
        while self.calls > 1:
            pass
        return self.forward(x)
"""


def test_a_wrong_first_call_is_the_verdict_whatever_comes_later(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = candidate(body="tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) * 3.0, mask=mask)")
    verdict = judge.judge(TASK, wrong.rstrip() + "\n" + ENDLESS_LATER, "key")
    assert (verdict.kind, verdict.category) == ("fail", "wrong_value"), verdict
    monkeypatch.setattr(judge, "settings", msgspec.structs.replace(judge.settings, wall_s=2.0))  # which is all used up
    right = judge.judge(TASK, candidate().rstrip() + "\n" + ENDLESS_LATER, "key")
    assert (right.kind, right.category) == ("fail", "timeout"), right
