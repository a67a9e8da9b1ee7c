"""The prompt sampler over an in-memory bus: which tasks of a foreign source are admitted."""

import asyncio

import pytest
import structlog

from actors.prompt_sampler import GoingNowhere, PromptSampler
from bus import facts
from bus.memory import MemoryBroker
from bus.memory_server import MemoryServer
from bus.run_bus import RunBus
from bus.topology import topology
from configs.schema import RunConfig
from core.clock import SystemClock
from core.run_folder import RunFolder
from runners.cli import first_cause, is_users_fault

SOURCE = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return {body}
def get_inputs():
    return [torch.randn(4, 8)]
def get_init_inputs():
    return []
"""


@pytest.fixture
def sampled(tmp_path):
    """Admits the 4 groups that a fresh run may have open; returns what was admitted, left out, and the cursor."""

    async def until_admitted(sampler, bus, wanted):
        work = asyncio.create_task(sampler.run())
        while not work.done() and sampler.gauges()["admitted_groups"] < wanted:
            await asyncio.wait({work}, timeout=0.02)
        sampler.stopping.set()
        await work
        found = [fact for _, fact in await bus.read_facts(1)]
        admitted = [fact.data["task_id"] for fact in found if fact.kind == facts.ADMITTED]
        left_out = [fact.data["task_id"] for fact in found if fact.kind == facts.LEFT_OUT]
        return admitted, left_out, (await bus.cursor())[0]

    def run(bodies, *, wanted=4, degenerate="refuse", server=None):
        level = tmp_path / "mine" / "level1"
        level.mkdir(parents=True, exist_ok=True)
        for number, body in enumerate(bodies, start=1):
            (level / f"{number}_T.py").write_text(SOURCE.format(body=body))
        config = RunConfig.model_validate(
            {
                "model": {"path": "m"},
                "tasks": {"train": [{"kind": "folder", "path": str(tmp_path / "mine")}], "degenerate": degenerate},
                "sampler": {"groups_per_step": 2, "max_staleness": 1, "group_size": 2, "order": "sequential"},
            }
        )

        async def main():
            broker = MemoryBroker(server or MemoryServer(SystemClock()), "sampler")
            await broker.ensure(
                topology("run", device_classes=[("triton", "cpu")], ack_wait_s=30, dead_after_s=7, max_worker_deaths=3)
            )
            bus = RunBus(broker, "run", "sampler")
            sampler = PromptSampler(config, bus, "sampler", RunFolder(tmp_path / "run"), SystemClock())
            return await until_admitted(sampler, bus, wanted)

        return asyncio.run(main())

    return run


def test_degenerate_tasks_are_passed_over_and_draws_are_counted(sampled, tmp_path):
    bodies = ["x * 0", "x + 1", "x", "x * 2"]
    admitted, left_out, cursor = sampled(bodies)
    assert admitted == ["mine/l1_2_T", "mine/l1_4_T"] * 2
    assert left_out == ["mine/l1_1_T", "mine/l1_3_T"]
    assert (cursor.admissions, cursor.epoch, cursor.position) == (4, 2, 0)
    kept = (tmp_path / "run" / "audit.jsonl").read_bytes()
    assert sampled(bodies)[0] == admitted
    assert (tmp_path / "run" / "audit.jsonl").read_bytes() == kept


def test_nothing_but_degenerate_tasks_ends_the_run(sampled):
    with pytest.raises(ExceptionGroup) as caught:
        sampled(["x * 0", "x * 0 + 3"])
    error = first_cause(caught.value)
    assert isinstance(error, GoingNowhere)
    assert is_users_fault(error)  # one line and exit code 2, no trace: the supervisor does not start it again
    assert str(error).startswith("all 2 training tasks would pay for computing nothing")


def test_a_task_that_is_waited_for_is_named(sampled, monkeypatch):
    """Nothing is admitted meanwhile, and nobody would know why."""
    monkeypatch.setattr("actors.prompt_sampler.SLOW_S", 0.2)
    with structlog.testing.capture_logs() as logs:
        sampled(["__import__('time').sleep(0.1) or x + 1", "x + 2"], wanted=2)
    told = [line["why"] for line in logs if line["event"].startswith("waiting for a task's own code")]
    assert told[0].startswith("mine/l1_1_T"), told


def test_they_are_kept_when_the_config_says_so(sampled, tmp_path):
    admitted, left_out, _ = sampled(["x * 0", "x + 1"], degenerate="keep")
    assert admitted == ["mine/l1_1_T", "mine/l1_2_T"] * 2
    assert left_out == []
    assert not (tmp_path / "run" / "audit.jsonl").exists()
