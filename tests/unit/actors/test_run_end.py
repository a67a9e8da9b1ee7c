"""Actors that nobody supervises end by themselves when their run has finished: real processes, a real broker, and a
test in the learner's place."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from actors import run_end
from bus import facts
from bus.messages import Beat, Step
from bus.nats import NatsBroker
from bus.run_bus import RunBus
from bus.server import EmbeddedServer
from bus.topology import topology
from core.clock import SystemClock

ROOT = Path(__file__).parents[3]
KINDS = ("sampler", "gateway", "evaluator", "checkpointer", "recorder")
"""The generator loads a policy first, which takes long on a busy machine; its life is the same base class's."""
STEPS, DEADLINE_S = 3, 240.0
RECIPE = """extends = "{root}/configs/demo.toml"
[run]
name = "ends"
folder = "{folder}/runs"
steps = {steps}
[bus]
token = "not for config.json"
[gateway]
port = 0
"""


@pytest.fixture
def server(tmp_path):
    server = EmbeddedServer(tmp_path / "nats")
    server.start()
    yield server
    server.stop()


@contextlib.asynccontextmanager
async def joined(server):
    broker = await NatsBroker.connect(server.url, server.token, name="test")
    await broker.ensure(
        topology("ends", device_classes=[("triton", "cpu")], ack_wait_s=60, dead_after_s=7, max_worker_deaths=3)
    )
    bus = RunBus(broker, "ends", "test")
    yield bus
    await bus.close()


async def append(bus, kind, step, after, incarnation=0):
    record = Step(run_id="ends", kind=kind, incarnation=incarnation, step=step, version=step)
    return await bus.append_step(record, after_seq=after)


async def told(bus, kind):
    return [fact for _, fact in await bus.read_facts(1, limit=1000) if fact.kind == kind]


def start(kind, folder, server):
    words = [
        sys.executable,
        "-m",
        "runners.cli",
        "run",
        kind,
        "--config",
        str(folder / "run.toml"),
        "--name",
        f"{kind}-0",
    ]
    environment = {**os.environ, "NATS_URL": server.url, "NATS_TOKEN": server.token, "OMP_NUM_THREADS": "1"}
    with (folder / f"{kind}.log").open("wb") as log:
        return subprocess.Popen(words, cwd=ROOT, env=environment, stdout=log, stderr=log)


@pytest.mark.timeout(300)
def test_each_actor_ends_with_0_and_the_recorder_last(server, tmp_path):
    (tmp_path / "run.toml").write_text(RECIPE.format(root=ROOT, folder=tmp_path, steps=STEPS))

    async def all_joined(bus, processes):
        here, next_seq = 0, 1
        while here < len(KINDS):
            for seq, fact in await bus.read_facts(next_seq):
                next_seq, here = seq + 1, here + (fact.kind == facts.JOINED)
            for kind, process in processes.items():
                assert process.poll() is None, (tmp_path / f"{kind}.log").read_text()[-2000:]

    async def main():
        async with joined(server) as bus, asyncio.timeout(DEADLINE_S):
            seq = await append(bus, "incarnation", 0, 0)
            processes = {kind: start(kind, tmp_path, server) for kind in KINDS}
            try:
                await all_joined(bus, processes)
                await append(bus, "finished", STEPS, seq)
                for kind, process in processes.items():
                    assert await asyncio.to_thread(process.wait) == 0, (tmp_path / f"{kind}.log").read_text()[-2000:]
                late = start("checkpointer", tmp_path, server)
                processes["late"] = late
                assert await asyncio.to_thread(late.wait) == 0
            finally:
                for process in processes.values():
                    process.kill()
                    process.wait()
            return [fact.data["kind"] for fact in await told(bus, facts.LEFT)]

    left = asyncio.run(main())
    places = [next(at for at, kinds in enumerate(run_end.ORDER) if kind in kinds) for kind in left[: len(KINDS)]]
    assert sorted(left[: len(KINDS)]) == sorted(KINDS) and places == sorted(places)
    folder = tmp_path / "runs" / "ends"
    kept = json.loads((folder / "config.json").read_text())
    assert kept["run"]["steps"] == STEPS and kept["bus"]["token"] == ""
    assert not [path for path in folder.iterdir() if path.name.startswith(".config")]
    recorded = [json.loads(line) for line in (folder / "record" / "facts.jsonl").read_text().splitlines()]
    assert {fact["data"]["kind"] for fact in recorded if fact["kind"] == facts.LEFT} >= set(KINDS) - {"recorder"}


@pytest.mark.parametrize("steps", [STEPS + 1, STEPS])
def test_a_run_with_steps_to_go_has_not_ended(server, steps):
    """`run.steps` was raised, or a learner has taken over again."""

    async def main():
        async with joined(server) as bus:
            clock = SystemClock()
            end = asyncio.create_task(
                run_end.run_has_ended(bus, "sampler", steps=steps, look_every_s=0.01, clock=clock)
            )
            seq = await append(bus, "incarnation", 0, 0)
            if steps > STEPS:
                seq = await append(bus, "finished", STEPS, seq)
            seq = await append(bus, "incarnation", STEPS, seq, incarnation=1)
            for _ in range(20):
                await bus.last_step()
            assert not end.done()
            await append(bus, "finished", steps, seq, incarnation=1)
            await asyncio.wait_for(end, DEADLINE_S)

    asyncio.run(main())


def test_one_that_hangs_does_not_hold_the_others(server):
    async def main():
        async with joined(server) as bus:
            await append(bus, "finished", STEPS, 0)
            await bus.beat(Beat(run_id="ends", kind="generator", actor="test", pid=1, host="h", at=0.0))
            ended = run_end.run_has_ended(
                bus, "recorder", steps=STEPS, look_every_s=0.01, clock=SystemClock(), patience_s=0.1
            )
            await asyncio.wait_for(ended, DEADLINE_S)
            assert run_end.leaves_before("recorder", await bus.beats())

    asyncio.run(main())
