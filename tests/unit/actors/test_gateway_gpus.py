"""Evaluators with GPUs behind the gateway: their state is shown, a reset probes for real, a preferred one is asked."""

import asyncio

from actors.gpu_calls import GpuReport, follow, used_by
from actors.preference import NAME, TURNS, hand_back_s
from bus.messages import Evaluation
from core.evaluation.gpu.condition import Condition, Fault, Probed
from core.evaluation.gpu.health import GpuHealth
from core.tasks.task import Task
from tests.unit.actors.gateway_scene import beat, body, post, run, scene, until

PASS = {"kind": "pass", "compiled": True, "correct": True}


async def passing(candidate):
    return PASS


async def get(session, path):
    async with session.get(path) as response:
        return await response.json()


def harmed(quarantined):
    condition = Condition()
    condition.fault(Fault(category="illegal_access", at=10.0, pid=1))
    if not quarantined:
        condition.probed(Probed(passed=True, seconds=0.4), 12.0)
    return condition.gauges()


def test_a_gpus_state_faults_and_times_are_shown():
    async def main():
        async with scene(passing) as (here, session):
            await beat(here.bus, **harmed(quarantined=True))
            await until(lambda: here.judging.devices() and here.judging.devices()[0].gpu)
            health, status = await get(session, "/health"), await get(session, "/gpu_status")
            assert health["devices"][0]["status"] == "error" and health["available_device_ids"] == []
            assert status["devices"][0]["gpu"]["state"] == "quarantined" and not status["devices"][0]["available"]
            assert (await post(session, "/reset_devices", {}))[1]["available_devices"] == []
            await beat(here.bus, **harmed(quarantined=False))
            await until(lambda: here.judging.devices()[0].sound)
            faults = await get(session, "/fault_statistics")
            gpu = faults["kernelmill"]["gpus"]["0"]
            assert gpu["faults"] == {"illegal_access": 1} and gpu["recovery_s_max"] == 2.0
            assert (await post(session, "/cleanup", {}))[1]["kernelmill"]["gpus"]["0"] == gpu
            assert (await get(session, "/health"))["available_device_ids"] == [0]
            async with session.get("/metrics") as response:
                assert 'gpu_faults_total{evaluator="judge",category="illegal_access"} 1' in await response.text()

    run(main)


def test_a_reset_probes_the_gpu_of_that_evaluator_and_answers_what_came_out(tmp_path):
    async def main():
        async with scene(passing) as (here, session):
            await until(lambda: here.book.names)
            status, before, _ = await post(session, "/reset_gpu/0", {})
            assert status == 200 and before["kernelmill"]["why"] == "no GPU to probe"
            report = GpuReport(["cpu"], tmp_path)  # the same probe and state without a GPU

            async def beating():
                while True:
                    await beat(here.bus, **report.gauges())
                    await asyncio.sleep(1.0)

            jobs = [asyncio.create_task(follow(here.bus, report)), asyncio.create_task(beating())]
            try:
                await until(lambda: here.judging.devices()[0].gpu)
                GpuHealth("cpu", probe=None, folder=tmp_path).fault("xid", "Xid 79")
                status, result, _ = await post(session, "/reset_gpu/0", {})
                assert (status, result["new_fault_count"], result["kernelmill"]["passed"]) == (200, 0, True)
                assert result["kernelmill"]["probe"]["cpu"]["state"] == "healthy"
                assert report.gauges()["gpu_probes_passed"] == report.gauges()["gpu_quarantines"] == 1
            finally:
                for job in jobs:
                    job.cancel()
                await asyncio.gather(*jobs, return_exceptions=True)

    run(main)


def test_a_preferred_device_is_asked_for_and_one_that_is_not_there_is_no_wish():
    async def main():
        async with scene(passing) as (here, session):
            await until(lambda: here.book.names)
            for candidate, preferred in (("first", 0), ("unknown", 7), ("negative", -1), ("none", None)):
                assert (await post(session, "/eval", body(candidate, preferred_device=preferred)))[0] == 200
            wishes = {candidate: settings.get(NAME) for candidate, settings in here.settings.items()}
            assert wishes == {"first": "judge", "unknown": None, "negative": None, "none": None}

    run(main)


def test_others_leave_the_work_to_the_preferred_evaluator_for_a_while():
    task = Task(task_id="t", name="t", level=1, origin="test", source="")

    def asked(**settings):
        return Evaluation(run_id="r", candidate_key="k", task=task, candidate="c", settings=settings)

    wish = asked(**{NAME: "evaluator-1"})
    assert hand_back_s(wish, "evaluator-0", 1) > 0 and hand_back_s(wish, "evaluator-1", 1) == 0
    assert hand_back_s(wish, "evaluator-0", TURNS + 1) == 0 and hand_back_s(asked(), "evaluator-0", 1) == 0


def test_a_pool_reports_each_gpu_that_its_workers_take(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    assert used_by(2, True) == ["cuda:0", "cuda:1"] and len(used_by(8, True)) == 3
    assert used_by(2, False) == []
