"""A reference that ends the judge's process: the task is at fault, not the judge, and no retry helps."""

import asyncio
from collections.abc import Callable, Iterator

import msgspec
import pytest
from right_answer import TASK, candidate

from core.evaluation.pool import JudgePool
from core.evaluation.settings import JudgeSettings
from core.evaluation.verdict import Verdict

ENDS = "\nimport os as _os\ndef get_inputs():\n    {how}\n"


@pytest.fixture(scope="module")
def judged() -> Iterator[Callable[[str], list[Verdict]]]:
    """Verdicts of a task with more source, and of the task as it is, by a pool of one worker."""
    pool = JudgePool(JudgeSettings(retries=1), 1)

    async def both(source: str) -> list[Verdict]:
        ending = msgspec.structs.replace(TASK, source=TASK.source + source)
        return [await pool.judge(task, candidate(), "k") for task in (ending, TASK)]

    with asyncio.Runner() as runner:
        try:
            runner.run(pool.start())
            yield lambda source: runner.run(both(source))
        finally:
            runner.run(pool.stop())


@pytest.mark.parametrize(
    "how, category, words",
    [
        ("_os._exit(0)", "task_error", "exit code 0"),
        ("_os._exit(7)", "task_error", "exit code 7"),
        ("_os.kill(_os.getpid(), 9)", "infra", "judge worker"),  # as where memory is short: that may be ours
    ],
)
def test_who_ended_it_is_told_and_the_next_task_is_judged(judged, how, category, words):
    ended, after = judged(ENDS.format(how=how))
    assert (ended.kind, ended.category) == ("infra", category) and words in ended.feedback
    assert after.kind == "pass", after.feedback
