"""A judge's start beside others: what is their doing refuses no machine, and nobody waits for it for ever."""

import asyncio
import time

import pytest
import torch

from core.evaluation import pool, tiers
from core.evaluation.gpu.clock import GpuSettings
from core.evaluation.gpu.health import GpuHealth
from core.evaluation.gpu.stage import GpuStage
from core.evaluation.settings import JudgeSettings
from core.evaluation.tiers import TieredJudge
from core.evaluation.verdict import Verdict
from core.evaluation.walls.namespaces import Walls

WALLS = Walls(level="basic")


@pytest.fixture
def judge(tmp_path, monkeypatch):
    """Whose tiers are never started: `judge.gpu.judge` is what a test makes it."""
    made = TieredJudge(JudgeSettings(device_class="gpu", speed="none"), "cpu", slot=3, own_work=False, proves=True)
    made.health = GpuHealth("cpu", probe=lambda: pytest.fail("nobody probes here"), folder=tmp_path)
    for tier in (made._cpu, made.gpu):
        monkeypatch.setattr(tier, "wait_ready", lambda: None)
    monkeypatch.setattr(tiers, "AGAIN_S", 0.0)
    return made


@pytest.mark.parametrize(
    ("kind", "category"),
    [("unsupported", "unsupported"), ("infra", "infra"), ("fail", "memory"), ("fail", "timeout")],
)
def test_a_gpu_that_others_fill_is_no_judge_that_is_wrong(judge, monkeypatch, kind, category):
    told = Verdict(candidate_key="k", kind=kind, tier="gpu", category=category, feedback="no room")
    monkeypatch.setattr(judge.gpu, "judge", lambda *_: told)
    judge.wait_ready()


def test_a_quarantine_and_others_hold_a_start_up_for_a_while_only(judge, monkeypatch):
    monkeypatch.setattr(tiers, "PROOF_WAIT_S", 0.1)
    judge.health.fault("illegal_access")
    other = GpuHealth("cpu", probe=lambda: pytest.fail("nobody probes here"), folder=judge.health._shared._path.parent)
    started = time.monotonic()
    with other._shared.probing():  # for ever
        judge.wait_ready()
    assert time.monotonic() - started < 10


def test_a_gpu_without_any_memory_left_stops_no_start(judge, monkeypatch):
    def full():
        raise torch.OutOfMemoryError("CUDA out of memory.")

    judge._proves = False
    monkeypatch.setattr(judge.health.quiet, "calibrate", full)
    judge.wait_ready()


def test_nobody_waits_for_quiet_to_warm_up(monkeypatch):
    """Under the lease, alone: on a GPU that a learner keeps busy each worker would keep the others waiting."""
    stage = GpuStage(GpuSettings(device="cuda:0"), WALLS)
    quiet, seen = object(), []
    stage.watch_quiet(quiet)
    for zygote in (stage.candidates, stage.baselines):
        monkeypatch.setattr(zygote, "wait_ready", lambda: None)
    monkeypatch.setattr(stage, "judge", lambda *_: seen.append((stage._clock.quiet, stage._honesty.quiet)))
    monkeypatch.setattr(stage, "_forget", lambda: None)
    stage.wait_ready()
    assert seen == [(None, None)] * 2
    assert stage._clock.quiet is quiet and stage._honesty.quiet is quiet


@pytest.mark.parametrize(("deaths", "starts"), [(2, 3), (3, 3)])
def test_a_worker_that_dies_of_its_start_is_started_again(deaths, starts, monkeypatch):
    made = pool.JudgePool(JudgeSettings(), workers=1)
    tried = []

    async def start():
        tried.append(1)
        if len(tried) <= deaths:
            raise asyncio.IncompleteReadError(b"", 4)

    monkeypatch.setattr(made._workers[0], "start", start)
    if deaths < starts:
        asyncio.run(made.start())
    else:
        with pytest.raises(pool.JudgeError, match="did not start"):
            asyncio.run(made.start())
    assert len(tried) == starts


def test_a_worker_that_says_why_it_can_not_judge_is_asked_once(monkeypatch):
    made = pool.JudgePool(JudgeSettings(), workers=1)
    tried = []

    async def start():
        tried.append(1)
        raise pool.JudgeError("no GPU here")

    monkeypatch.setattr(made._workers[0], "start", start)
    with pytest.raises(pool.JudgeError, match="no GPU here"):
        asyncio.run(made.start())
    assert len(tried) == 1
