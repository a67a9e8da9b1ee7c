"""All verdicts of the corpus, collected once per session by two workers; each test waits for its own.

A pool runs in a thread of its own, so that both workers are busy while the tests only read answers. Only the files of
the tests that were chosen are judged.
"""

import asyncio
import re
import threading
from concurrent.futures import Future
from pathlib import Path

from core.evaluation.pool import JudgePool
from core.evaluation.settings import JudgeSettings
from core.evaluation.verdict import Verdict
from core.tasks.task import Task

HERE = Path(__file__).parent
SETTINGS = JudgeSettings()


def field(source: str, name: str) -> str:
    """The value of a line `name: value` of a file's docstring."""
    found = re.search(rf"^{name}: (.*)$", source, re.MULTILINE)
    assert found is not None, f"the docstring lacks a line '{name}: ...'"
    return found[1]


def task_of(source: str) -> Task:
    """The task that a file's docstring names."""
    name = field(source, "task")
    text = (HERE / "tasks" / f"{name}.py").read_text()
    return Task(task_id=f"hacks/{name}", name=name, level=1, origin="hacks", source=text)


class Verdicts:
    """path -> its verdict; raises what went wrong with the pool."""

    def __init__(self, paths: list[Path]) -> None:
        self._answers: dict[Path, Future[Verdict]] = {path: Future() for path in paths}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._judge_all(),))
        self._thread.start()

    def __getitem__(self, path: Path) -> Verdict:
        return self._answers[path].result()

    def close(self) -> None:
        """Give up what was not asked for."""
        for answer in self._answers.values():
            answer.cancel()
        self._thread.join()
        self._loop.close()

    async def _judge_all(self) -> None:
        pool = JudgePool(SETTINGS, workers=2)
        left = iter(self._answers.items())

        async def work() -> None:
            for path, answer in left:
                if not answer.set_running_or_notify_cancel():
                    continue
                try:
                    source = path.read_text()
                    answer.set_result(await pool.judge(task_of(source), source, path.stem))
                except Exception as error:  # a broken file fails its own test
                    answer.set_exception(error)

        try:
            await pool.start()
            await asyncio.gather(work(), work())
        except Exception as error:
            for _, answer in left:
                if not answer.done():
                    answer.set_exception(error)
        finally:
            await pool.stop()
