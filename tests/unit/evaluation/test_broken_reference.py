"""A reference that is no task or does not run: nobody is right or wrong, whatever the candidate's text looks like."""

import pytest
from right_answer import TASK, candidate

from core.evaluation.judge import Judge
from core.evaluation.settings import JudgeSettings
from core.evaluation.verdict import Verdict
from core.tasks.task import Task

SOUND = """
import torch
N = 16
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)
def get_inputs():
    return [torch.randn(N)]
def get_init_inputs():
    return []
"""
BROKEN = {
    "no Python": "class Model(:",
    "empty but for a comment": "# nothing",
    "without Model": SOUND.replace("class Model", "class Other"),
    "without get_inputs": SOUND.replace("def get_inputs", "def inputs"),
    "raises when it loads": SOUND + "1 / 0\n",
    "raises in its inputs": SOUND.replace("[torch.randn(N)]", "[torch.randn(M)]"),
    "raises in forward": SOUND.replace("torch.relu(x)", "torch.rleu(x)"),
    "Model is no module": SOUND.replace("(torch.nn.Module)", ""),
}
CANDIDATES = {
    "right": candidate(),
    "no Python": "def (:",
    "no ModelNew": "import triton\nprint('hello')\n",
    "no kernel": "import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x.relu()\n",
    "words": "I am sorry, I can't do that.",
}


def judged(source: str, answer: str) -> Verdict:
    task = Task(task_id="file/odd", name="odd", level=1, origin="file", source=source)
    return Judge(JudgeSettings()).judge(task, answer, "key")


@pytest.mark.parametrize("how", BROKEN)
def test_no_candidate_is_scored(how: str) -> None:
    verdicts = {name: judged(BROKEN[how], answer) for name, answer in CANDIDATES.items()}
    assert {name: (one.kind, one.category) for name, one in verdicts.items()} == dict.fromkeys(
        CANDIDATES, ("infra", "task_error")
    )
    assert len({one.feedback for one in verdicts.values()}) == 1  # it is about the reference


@pytest.mark.parametrize("name", [name for name in CANDIDATES if name != "right"])
@pytest.mark.parametrize("source", [TASK.source, SOUND.replace("N = 16", "N = 2**34")], ids=["sound", "too large"])
def test_a_text_that_can_not_be_right_is_wrong_where_there_is_a_task(source: str, name: str) -> None:
    verdict = judged(source, CANDIDATES[name])
    assert (verdict.kind, verdict.tier, verdict.stage) == ("fail", "static", "static")
