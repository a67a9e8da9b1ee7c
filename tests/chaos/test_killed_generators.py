"""Kill -9 a generator in the middle of a group: what it had finished stands, and nobody plays it again.

A real broker, real generator processes and the shipped policy; the test sits in the places of the learner (a policy and
a group to play), the sampler (its reaper) and the evaluator (every candidate fails). A whole run in which everything is
killed is `test_kill_anything`.
"""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from safetensors.torch import load_file

from bus import facts, subjects
from bus.messages import Evaluation, Judged, Policy, Request
from bus.reaper import Reaper
from bus.server import EmbeddedServer
from bus.worker import Worker
from configs.load import load
from core.evaluation.verdict import Verdict
from core.flow.ledger import Admission, EndedEpisode, settle
from core.run_folder import RunFolder
from core.tasks.loading import load_tasks
from core.weights import filesystem
from runners.actor_process import connect

ROOT = Path(__file__).parents[2]
GROUP, SIZE = "0" * 31 + "7", 8
GENERATORS = ("generator-0", "generator-1")
OVERRIDES = ["run.name=killed", f"sampler.group_size={SIZE}", "rollout.batch_rows=2", "rollout.parity_max_abs=0",
             "rollout.parity_mean_share=0", "bus.beat_s=0.5", "bus.dead_after_s=3"]  # fmt: skip


@pytest.mark.timeout(150)
def test_episodes_of_a_killed_generator_are_played_by_nobody_else(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.root.mkdir()
    folder.config.write_text(load(ROOT / "configs" / "demo.toml", OVERRIDES).model_dump_json())
    server = EmbeddedServer(tmp_path / "nats")
    server.start()
    folder.bus.write_text(json.dumps({"url": server.url, "token": server.token}))
    processes = {name: start(folder, name) for name in GENERATORS}
    try:
        before, ended, told = asyncio.run(scene(folder, server, processes))
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
        server.stop()
    assert 2 <= len(before) < SIZE
    assert sorted(e.episode.index for e in ended) == list(range(SIZE))
    by_index = {e.episode.index: e for e in ended}
    (victim,) = {e.generator for e in before.values()}
    assert all(by_index[index] == e for index, e in before.items()), "what stood was written over"
    (taken,) = [line for line in told if line.get("event") == "group taken over"]
    assert taken["actor"] != victim
    assert set(taken["standing"]) >= before.keys()
    assert {index for index, e in by_index.items() if e.generator == victim} == set(taken["standing"])
    assert sorted(taken["standing"] + taken["missing"]) == list(range(SIZE))
    ends = [EndedEpisode(group_id=GROUP, index=e.episode.index, end=e.episode.end) for e in ended]
    ledger = settle([Admission(group_id=GROUP, admission=0, size=SIZE)], [], ends)
    assert ledger.balanced and ledger.waiting == SIZE and not ledger.tombstones, ledger.problems


def start(folder, name):
    with (folder.root / f"{name}.jsonl").open("w") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "runners.run_actor", "generator", "--config", str(folder.config), "--run-folder",
             str(folder.root), "--name", name],
            cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip


async def scene(folder, server, processes):
    """(episodes that stood at the kill, all episodes, log lines of both generators)."""
    config = load(folder.config)
    bus = await connect(config, "test", server.url, server.token)
    reaper = Reaper(bus, max_deaths=3, on_poison=refuse)
    evaluator = Worker(
        bus, stream=bus.names.evaluations, consumer=subjects.evaluate_consumer("triton", "cpu"), kind=Evaluation,
        handler=lambda _, asked: fail(bus, asked), on_poison=refuse, slots=4, ack_wait_s=60,
    )  # fmt: skip
    helpers = [asyncio.create_task(evaluator.run()), asyncio.create_task(follow(bus, reaper))]
    try:
        weights = load_file(next((ROOT / config.model.path).glob("*.safetensors")))
        manifest = filesystem.publish(folder.weights, 0, weights.items())
        where = str(filesystem.version_folder(folder.weights, 0))
        await bus.put_policy(Policy(run_id="killed", version=0, step=0, folder=where, fingerprint=manifest.fingerprint))

        async def both_hold_the_policy():
            return len([beat for beat in reaper.beats.values() if beat.version == 0]) == len(processes)

        await until(both_hold_the_policy, processes)
        task = load_tasks([source.model_dump() for source in config.tasks.train], "triton")[0]
        await bus.publish_request(
            Request(
                run_id="killed", trace=GROUP, group_id=GROUP, admission=0, task=task, size=SIZE, max_turns=1, seed=1
            )
        )

        async def episodes():
            return [ended for _, ended in await bus.read_episodes(1, timeout_s=0.2)]

        async def some():
            return len(await episodes()) >= 2

        await until(some, processes)
        victim = (await episodes())[0].generator
        processes[victim].kill()  # SIGKILL
        processes[victim].wait()
        before = {e.episode.index: e for e in await episodes()}

        async def all_of_them():
            return len(await episodes()) == SIZE and not any(beat.held for beat in reaper.beats.values())

        await until(all_of_them, {name: p for name, p in processes.items() if name != victim})
        kinds = Counter(fact.kind for _, fact in await bus.read_facts(1))
        assert kinds[facts.DIED] == 1 and not kinds[facts.POISONED]
        told = [json.loads(line) for name in GENERATORS for line in lines(folder, name)]
        return before, await episodes(), told
    finally:
        for helper in helpers:
            helper.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*helpers)
        await bus.close()


async def follow(bus, reaper):
    async for actor, beat in bus.watch_actors():
        await reaper.see(actor, beat)


async def fail(bus, asked):
    verdict = Verdict(candidate_key=asked.candidate_key, kind="fail")
    await bus.publish_judged(Judged(run_id="killed", verdict=verdict))


async def refuse(*what):
    raise AssertionError(f"given up: {what}")


async def until(condition, processes):
    while not await condition():
        for name, process in processes.items():
            assert process.poll() is None, f"{name} left"
        await asyncio.sleep(0.05)


def lines(folder, name):
    return [line for line in (folder.root / f"{name}.jsonl").read_text().splitlines() if line.startswith("{")]
