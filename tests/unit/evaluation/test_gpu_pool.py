"""The pool of the GPU tier: a worker that lost its context is replaced; how long an answer may take."""

import asyncio

import pytest

from core.evaluation import cuda_on_gpu, gpu_health, pool, worker
from core.evaluation.gpu_clock import GpuSettings
from core.evaluation.settings import JudgeSettings
from core.evaluation.verdict import Verdict
from core.tasks.task import Task

TASK = Task(task_id="t", name="t", level=1, origin="test", source="")
PASS = Verdict(candidate_key="k", kind="pass")


class _Worker(pool._Worker):
    """With the far end of its socket in this process: `replies` are what it answers, start by start."""

    def __init__(self, settings, replies):
        super().__init__(settings, 0)
        self._replies, self.starts = replies, 0

    @property
    def running(self):
        return self.hello is not None

    async def start(self):
        self.starts += 1
        self.hello = worker.Hello(walls="", level="basic")
        self._reader, self._writer = asyncio.StreamReader(), _Sink()
        self._reader.feed_data(worker.pack(self._replies.pop(0)))
        self._reader.feed_eof()


class _Sink:
    def write(self, data):
        assert data

    async def drain(self):
        pass

    def close(self):
        pass

    async def wait_closed(self):
        pass


@pytest.mark.parametrize(("losses", "kind"), [(0, "pass"), (2, "pass"), (3, "infra")])
def test_a_worker_that_lost_its_context_is_started_again(losses, kind):
    settings = JudgeSettings()
    replies = [worker.Lost(reason="its context is gone")] * losses + [worker.Answer(verdict=PASS)]
    judges = pool.JudgePool(settings, workers=1)
    one = _Worker(settings, list(replies))
    judges._workers = [one]
    judges._free.put_nowait(one)
    verdict = asyncio.run(judges.judge(TASK, "", "k"))
    assert verdict.kind == kind and one.starts == min(losses + 1, settings.retries + 1)
    assert kind == "pass" or "its context is gone" in verdict.feedback


def test_an_answer_may_take_what_its_parts_may_take():
    assert (cuda_on_gpu.WALL_S, GpuSettings().baseline_wall_s) == (pool.BUILD_S, pool.BASELINE_S)
    gpu = {"device_class": "gpu", "speed": "measured"}
    eager = pool.longest_s(JudgeSettings(**gpu))
    both = pool.longest_s(JudgeSettings(**gpu, baseline="compile", baselines=("eager", "compile", "max-autotune")))
    least_s = gpu_health.WAIT_S + gpu_health.ATTEMPTS * (JudgeSettings().gpu_wall_s + cuda_on_gpu.WALL_S)
    assert least_s < eager and both == eager + 2 * pool.BASELINE_S
    assert pool.longest_s(JudgeSettings()) < 900
