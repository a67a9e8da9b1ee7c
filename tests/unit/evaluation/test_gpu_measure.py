"""Baselines by name, what is remembered of them, and whose fault a baseline's failure is; the real stage on the CPU."""

import msgspec
import pytest
from test_gpu_stage import CANDIDATE, RIGHT, TASK

from core.evaluation.gpu import again as gpu_again
from core.evaluation.gpu import baseline as gpu_baseline
from core.evaluation.gpu import clock as gpu_clock
from core.evaluation.gpu import measure as gpu_measure
from core.evaluation.gpu import timing
from core.evaluation.gpu.baselines import Baseline, BaselineCache
from core.evaluation.gpu.clock import GpuSettings
from core.evaluation.gpu.stage import GpuStage
from core.evaluation.walls import sandbox

PROTOCOL = timing.Protocol(rounds=2, most_rounds=2, budget_s=0.1, most_calls=6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("baselines")


@pytest.fixture(scope="module")
def stage(folder):
    settings = GpuSettings(
        own_work=False,
        device="cpu", wall_s=30.0, protocol=PROTOCOL, baselines=("eager", "compile", "max-autotune"),
        baseline="compile", baseline_folder=str(folder),
    )  # fmt: skip
    found = GpuStage(settings, sandbox.probe(), slot=94)
    found.start()
    found.wait_ready()
    yield found
    found.stop()


@pytest.fixture
def known(stage, folder, monkeypatch):
    """compile is twice as fast as eager, as far as anybody remembers; max-autotune does not work."""
    monkeypatch.setattr(timing, "MOST_DRIFT", 1e9)  # this machine's speed is nobody's business here
    cache, task = BaselineCache(str(folder)), stage._prepare(TASK)
    cache.put(
        gpu_baseline.key(task, stage.settings, "compile"),
        Baseline(median_ms=1.0, eager_ms=2.0, calls=9, clock="events"),
    )
    cache.put(
        gpu_baseline.key(task, stage.settings, "max-autotune"),
        Baseline(median_ms=0.0, eager_ms=2.0, calls=0, clock="", trouble="no compiler"),
    )
    return cache


def test_the_reward_is_over_the_baseline_that_was_asked_for(stage, known, caplog):
    verdict = stage.judge(TASK, CANDIDATE.format(body=RIGHT), "k")
    assert verdict.kind == "pass", verdict.feedback
    eager = stage.measured.speedup
    assert stage.measured.others == {"compile": pytest.approx(eager / 2)}
    assert verdict.speedup == pytest.approx(eager / 2, abs=1e-4)
    assert verdict.speedup_low == pytest.approx(stage.measured.speedup_low / 2, abs=1e-4)
    assert verdict.baseline_ms / verdict.runtime_ms == pytest.approx(eager / 2, rel=1e-3)
    assert "over torch.compile" in verdict.feedback
    assert f"eager PyTorch {eager:.2f}x" in verdict.feedback
    assert "no compiler" in caplog.text
    eager_now = known.get(gpu_baseline.key(stage._task[1], stage.settings, "eager"))
    # What a busy machine made unsteady is not remembered.
    assert (eager_now is not None) == stage.measured.steady and (eager_now is None or eager_now.gain == 1.0)


def test_eager_that_was_slowed_is_clocked_again_without_the_candidate(stage, known, monkeypatch):
    verdict = stage.judge(TASK, CANDIDATE.format(body=RIGHT), "k")
    assert verdict.kind == "pass", verdict.feedback
    monkeypatch.setattr(gpu_measure, "SLOWED", 0.1)
    honest = stage.measured
    slowed = stage._clock.measured = timing.rebased(honest, 1000 * honest.baseline_ms)
    assert slowed.speedup == pytest.approx(1000 * honest.speedup)
    worded = stage._clock._worded("k", slowed)
    told = msgspec.structs.replace(worded, feedback=worded.feedback + "\nkernels: x", screens=("autotune",))
    again = stage._clock.confirmed(stage._task[1], told)
    assert again.speedup_low < 100 * honest.speedup_low and again.speedup < 100 * honest.speedup
    assert again.runtime_ms == honest.runtime_ms and again.screens == ("autotune",)
    assert again.feedback.endswith("kernels: x") and again.feedback != told.feedback
    # What eager takes alone is what counts from here on: asked once more, nothing changes.
    monkeypatch.setattr(gpu_measure, "SLOWED", 0.95)
    assert stage._clock.confirmed(stage._task[1], again) == again


def test_flushes_that_were_slowed_while_they_were_learned_let_no_forged_readings_count(stage, known, monkeypatch):
    """By a candidate that keeps all cores busy just then: what is taken off its wall leaves nothing of it."""
    learned, learn = [], gpu_clock.Clock.learn

    def slowed(clock, child, trees):
        learn(clock, child, trees)
        learned.append(clock.timed)
        if len(learned) == 1:
            clock.timed = gpu_clock.Timed(flush_ms=1e3, idle_ms=1e3)

    monkeypatch.setattr(gpu_clock.Clock, "learn", slowed)
    monkeypatch.setattr(stage._clock, "_timed", {})
    body = """
        import gc
        if self.kept is None:
            self.kept = next(thing for thing in gc.get_objects() if type(thing).__name__ == "Child")
            type(self.kept)._readings = lambda child: [1e-3] * len(child._events)
        """ + RIGHT.lstrip()
    verdict = stage.judge(TASK, CANDIDATE.format(body=body), "k")
    assert verdict.kind == "pass", verdict.feedback
    assert verdict.runtime_ms > 0.01 and stage.measured.clock == "wall"
    assert stage._clock._timed[TASK.source] == learned[1]


def test_a_baseline_that_dies_is_not_the_candidates_fault(stage, known):
    assert stage.judge(TASK, CANDIDATE.format(body=RIGHT), "k").kind == "pass"
    stage.baselines.order("no such order")
    verdict = stage.judge(TASK, CANDIDATE.format(body=RIGHT), "k")
    assert verdict.kind == "infra", verdict.feedback
    assert "baseline" in verdict.feedback
    assert stage.judge(TASK, CANDIDATE.format(body=RIGHT), "k").kind == "pass"


def test_every_part_of_a_measurement_is_in_the_key(stage, known):
    task = stage._task[1]
    keys = [gpu_baseline.key(task, stage.settings, name) for name in gpu_baseline.MODES]
    names = [
        "source",
        "profile",
        "inputs",
        "outputs",
        "precision",
        "mode",
        "gpu",
        "driver",
        "torch",
        "triton",
        "cuda",
        "packages",
        "protocol",
    ]
    assert all(set(key) == set(names) for key in keys)
    assert len({BaselineCache().path(key) for key in keys}) == len(keys)


def test_every_baseline_of_the_settings_can_be_imported():
    for name in gpu_baseline.MODES:
        GpuSettings(baseline=name, baselines=(name,))
        space = {}
        exec(gpu_baseline.source("class Model: ...", name), space)
        assert callable(space["ModelNew"])


def test_warming_up_measures_once_and_remembers_nothing(stage, known, folder, monkeypatch):
    """Of a worker's start: other baselines of a task that nobody asks for would take half a minute."""
    for path in folder.glob("*.json"):
        path.unlink()
    monkeypatch.setattr(stage._clock, "warming", True)
    monkeypatch.setattr(timing, "WIDE", 0.0)
    runs = []
    once = stage._clock._once
    monkeypatch.setattr(stage._clock, "_once", lambda *given: runs.append(given[-2:]) or once(*given))
    verdict = stage.judge(TASK, CANDIDATE.format(body=RIGHT), "k")
    assert verdict.kind == "pass", verdict.feedback
    assert runs == [(False, False)] and not list(folder.glob("*.json")) and not verdict.baseline_trouble
    monkeypatch.setattr(stage._clock, "warming", False)
    others = []
    none = Baseline(median_ms=0.0, eager_ms=2.0, calls=0, clock="", trouble="no compiler")
    monkeypatch.setattr(stage._clock, "_other", lambda task, name, result: others.append(name) or none)
    stage.judge(TASK, CANDIDATE.format(body=RIGHT), "k")
    assert len(runs) > 2 and others == ["compile", "max-autotune"]


def test_a_measurement_that_is_made_again_is_not_on_the_candidates_time(stage, known, monkeypatch):
    """Right but noisy, after a first call that took most of its time."""
    body = """
        import random, time
        self.calls = getattr(self, "calls", 0) + 1
        time.sleep(2.0 if self.calls == 1 else 0.01 * random.choice((1, 3)))
        """ + RIGHT.lstrip()
    monkeypatch.setattr(timing, "WIDE", 0.0)
    more_s = []
    once = stage._clock._once

    def watched(*given):
        before = stage.candidates.deadline
        found = once(*given)
        more_s.append((given[-2], stage.candidates.deadline - before))
        return found

    monkeypatch.setattr(stage._clock, "_once", watched)
    monkeypatch.setattr(stage, "settings", msgspec.structs.replace(stage.settings, wall_s=5.0))
    verdict = stage.judge(TASK, CANDIDATE.format(body=body), "k")
    assert verdict.kind == "pass", verdict.feedback
    assert [again for again, _ in more_s] in ([False, True], [False, True, True])
    assert all((put_off_s >= gpu_again.MOST_S) == again for again, put_off_s in more_s)
