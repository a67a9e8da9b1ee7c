"""The generator's own code path on vLLM: a group from the request to its episodes, on a bus, with updates meanwhile."""

import asyncio

import numpy as np
import pytest
import torch

from actors.rollout_generator import RolloutGenerator
from bus import facts
from bus.memory import MemoryBroker
from bus.memory_server import MemoryServer
from bus.messages import Policy, Request
from bus.run_bus import RunBus
from bus.topology import topology
from configs.schema import RunConfig
from core import columns
from core.clock import SystemClock
from core.generation.errors import WrongWeights
from core.run_folder import RunFolder
from core.weights import filesystem
from core.weights.outgoing import Outgoing
from tests.vllm.test_rollout import TASK, TOLERANCE, tokenizer

ONE, TWO = "1" * 32, "2" * 32
"""Groups' ids: 32 hexadecimal digits, else what is said of them is refused."""


@pytest.fixture(scope="module")
def stage(policies, tmp_path_factory):
    folder = tmp_path_factory.mktemp("actor")
    tokenizer().save_pretrained(policies[0][0])
    server = MemoryServer(SystemClock())
    config = RunConfig.model_validate(
        {
            "model": {"path": str(policies[0][0]), "dtype": "float32", "context_tokens": 4096},
            "episodes": {"max_turns": 2, "zero_turns": 0, "prompt": "compact"},
            "rollout": {
                "engine": "vllm", "max_new_tokens": 160, "parity_max_abs": 0.01, "parity_mean_share": 0.001,
                "vllm": {"eager": True, "max_sequences": 16},
            },
        }
    )  # fmt: skip

    def bus(name):
        return RunBus(MemoryBroker(server, name), "run", name)

    return config, bus, RunFolder(folder / "run"), folder


def test_a_group_end_to_end_and_then_weights_that_are_not_the_learners(run, stage, policies, reference):
    config, bus, run_folder, folder = stage
    learner = bus("learner")

    async def put(version, where, fingerprint, source=""):
        await learner.put_policy(
            Policy(run_id="run", version=version, step=version, folder=where, fingerprint=fingerprint, source=source)
        )

    async def request(group_id):
        await learner.publish_request(
            Request(
                run_id="run", group_id=group_id, trace=group_id, admission=0, task=TASK, size=4, max_turns=2, seed=3
            )
        )

    async def until(work, condition):
        while not await condition():
            if work.done():
                work.result()
            await asyncio.sleep(0.02)

    async def ended():
        return [message for _, message in await learner.read_episodes(1, limit=100)]

    async def play():
        await learner.broker.ensure(
            topology("run", device_classes=[("triton", "cpu")], ack_wait_s=60, dead_after_s=7, max_worker_deaths=3)
        )
        tensors = filesystem.read(policies[1][0])
        outgoing = Outgoing("nccl", device=torch.device("cpu"), timeout_s=60)
        manifest = await asyncio.to_thread(outgoing.publish, folder / "copies", 0, list(tensors.items()))
        await put(0, str(folder / "copies" / "v000000"), manifest.fingerprint, manifest.source)
        actor = RolloutGenerator(config, bus("generator-0"), "generator-0", run_folder, SystemClock())
        work = asyncio.create_task(actor.run())
        await request(ONE)

        async def playing():
            return actor.gauges()["running"] >= 4

        await until(work, playing)
        await put(1, policies[1][1], policies[2][1].fingerprint)

        async def all_ended():
            return len(await ended()) == 4

        await until(work, all_ended)
        await request(TWO)
        await until(work, playing)
        await put(2, policies[1][2], "0" * 32)
        with pytest.raises(WrongWeights, match=r"version 2: .* the learner published 0000"):
            await work
        await asyncio.to_thread(outgoing.close)
        found = [fact.kind for _, fact in await learner.read_facts(1)]
        return await ended(), found, actor

    episodes, found, actor = run(play())
    assert found.count(facts.WEIGHTS_APPLIED) == 2 and found.count(facts.WEIGHTS_REFUSED) == 1
    assert facts.POISONED not in found and actor.held() == ()
    assert {message.episode.group_id for message in episodes} == {ONE}
    seen = set()
    for message in episodes:
        assert message.episode.end == "max_turns" and len(message.episode.turns) == 2
        for turn in message.episode.turns:
            ids, versions = columns.unpack("ids", turn.completion_ids), columns.unpack("versions", turn.versions)
            first = int(versions[0])
            head = int((versions == first).sum())
            expected = reference(first, columns.unpack("ids", turn.prompt_ids).tolist(), ids.tolist())
            assert np.abs(columns.unpack("logprobs", turn.logprobs)[:head] - expected[:head]).max() < TOLERANCE
            seen |= set(versions.tolist())
    assert seen == {0, 1}
