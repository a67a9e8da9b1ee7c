"""The pool of the GPU tier: a worker that lost its context is replaced; how long an answer may take."""

import asyncio

import pytest

from actors.fault_book import FaultBook
from actors.gateway import RunJudging
from actors.pool_judging import PoolJudging
from configs.load import load
from core.clock import SystemClock
from core.evaluation import pool, waits, worker
from core.evaluation.gpu import cuda_on_gpu
from core.evaluation.gpu import health as gpu_health
from core.evaluation.gpu.clock import GpuSettings
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
    tools = cuda_on_gpu.Tools(nvcc="", cxx="", arch="", includes=[], headers=[], libraries=[])
    gpu = {"device_class": "gpu", "speed": "measured"}
    eager = waits.longest_s(JudgeSettings(**gpu))
    both = waits.longest_s(JudgeSettings(**gpu, baseline="compile", baselines=("eager", "compile", "max-autotune")))
    least_s = gpu_health.WAIT_S + gpu_health.ATTEMPTS * (JudgeSettings().gpu_wall_s + tools.wall_s)
    assert least_s < eager and both == eager + 2 * GpuSettings().baseline_wall_s
    assert waits.longest_s(JudgeSettings()) < 900


SETTINGS = [
    JudgeSettings(),
    JudgeSettings(wall_s=400.0, retries=0),
    JudgeSettings(device_class="gpu", speed="measured"),
    JudgeSettings(device_class="gpu", speed="measured", gpu_wall_s=900.0, baselines=("eager", "max-autotune")),
]


@pytest.mark.parametrize("settings", SETTINGS)
def test_who_waits_for_a_verdict_waits_as_long_as_the_pool_does_for_its_worker(settings):
    asked = []

    class Told(_Worker):
        async def ask(self, request, timeout_s):
            asked.append(timeout_s)
            return worker.Answer(verdict=PASS)

    judging = PoolJudging(settings, 1, FaultBook(threshold=1))
    one = Told(settings, [worker.Answer(verdict=PASS)])
    judging._pool._workers = [one]
    judging._pool._free.put_nowait(one)
    assert asyncio.run(judging.verdict(TASK, "", "k", None)).verdict == PASS
    assert asked == [judging._timeout_s] == [waits.longest_s(settings)]
    assert PoolJudging(settings, 1, FaultBook(threshold=1), timeout_s=7.0)._timeout_s == 7.0


def test_a_runs_gateway_waits_as_long_as_its_evaluators_may_take(tmp_path):
    text = '[model]\npath = "m"\n[judge]\ndevice_class = "h100"\nspeed = "measured"\nbaseline = "compile"\n{}'
    for more, wanted in (
        ("", waits.longest_s(SETTINGS[2]) + waits.BASELINE_S),
        ("[gateway]\nverdict_timeout_s = 9", 9),
    ):
        (tmp_path / "run.toml").write_text(text.format(more))
        judging = RunJudging(load(str(tmp_path / "run.toml"), []), None, FaultBook(threshold=1), SystemClock())
        assert judging._timeout_s == wanted
