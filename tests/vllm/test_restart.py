"""A core that is killed; the last tests of the folder, since the engine starts anew."""

import asyncio

import numpy as np
import psutil

from core.generation import vllm_compat
from core.generation.engine import Sampling

TOLERANCE = 2e-3


def engine_tokens(engine):
    return list(vllm_compat.tokens_so_far(engine._core).values())


def test_a_core_that_died_is_started_again_with_its_weights(run, engine, policies, reference):
    """Its requests are asked for again; the version they have is that of the weights they were sampled by."""
    prompt = list(range(4, 16))

    async def play():
        await engine.load_weights(policies[1][2], 2)
        asked = asyncio.create_task(engine.generate(prompt, Sampling(max_new_tokens=400)))
        while not any(engine_tokens(engine)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        alive = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
        children = {" ".join([child.name(), *child.cmdline()]): child for child in alive}
        core = next(child for name, child in children.items() if "EngineCore" in name or "spawn_main" in name)
        core.kill()
        return await asked

    done = run(play())
    assert engine.gauges()["restarts"] == 1 and set(done.versions) == {2}
    assert np.abs(done.logprobs - reference(2, prompt, done.ids.tolist())).max() < TOLERANCE
