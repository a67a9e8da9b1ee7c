"""A core that is killed, or hangs: it is started again with its weights, and its requests are asked for again."""

import asyncio
import os
import signal

import numpy as np
import psutil

from core.generation import vllm_compat
from core.generation.engine import Sampling

TOLERANCE = 2e-3
PROMPT = list(range(4, 16))


def core_process(engine):
    (process,) = engine._core.engine_core.resources.engine_manager.processes
    return psutil.Process(process.pid)


async def sampling(engine):
    """A request in the midst of its tokens."""
    asked = asyncio.create_task(engine.generate(PROMPT, Sampling(max_new_tokens=400)))
    while not any(vllm_compat.tokens_so_far(engine._core).values()):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    return asked


async def replaced(engine, core, asked):
    while engine._core is core and not asked.done():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


def watches():
    """How many cores are watched; one that is gone must not be."""
    return sum("end_when_silent" in repr(task) for task in asyncio.all_tasks())


def check(done, reference):
    """The version they have is that of the weights they were sampled by."""
    assert set(done.versions) == {2} and len(done.ids) == 400
    assert np.abs(done.logprobs - reference(2, PROMPT, done.ids.tolist())).max() < TOLERANCE


def test_a_core_that_died_is_started_again_with_its_weights(run, engine, policies, reference):
    """Also when the next one dies before it has them."""
    before = engine.gauges()["restarts"]

    async def play():
        await engine.load_weights(policies[1][2], 2)
        asked = await sampling(engine)
        for _ in range(2):
            core = engine._core
            core_process(engine).kill()
            await replaced(engine, core, asked)
        return await asked, watches()

    done, watched = run(play())
    check(done, reference)
    assert watched == 1
    assert engine.gauges()["restarts"] == before + 2


def test_a_core_that_dies_in_a_pause_is_started_again_and_loads(run, engine, policies, reference, monkeypatch):
    """While a call of ours is with it, which vLLM would leave waiting; and the request that hears of it first, and sees
    to the restart, is cancelled meanwhile."""
    before = engine.gauges()["restarts"]

    async def play():
        await engine.load_weights(policies[1][1], 1)
        asked = await sampling(engine)
        core = engine._core

        async def dying():
            os.kill(core_process(engine).pid, signal.SIGSTOP)
            asyncio.get_running_loop().call_later(0.3, core_process(engine).kill)
            await core.collective_rpc("start_weight_update")

        monkeypatch.setattr(core, "start_weight_update", dying)
        loading = asyncio.create_task(engine.load_weights(policies[1][2], 2))
        while engine.gauges()["restarts"] == before:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        asked.cancel()
        assert await loading == policies[2][2].fingerprint
        done = await engine.generate(PROMPT, Sampling(max_new_tokens=400))
        os.kill(core_process(engine).pid, signal.SIGKILL)
        first, second = [asyncio.create_task(engine.generate(PROMPT, Sampling(max_new_tokens=400))) for _ in "ab"]
        while engine.gauges()["restarts"] == before + 1:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        first.cancel()
        return done, await second

    done, second = run(play())
    check(done, reference)
    check(second, reference)
    assert engine.gauges()["restarts"] == before + 2


def test_a_core_that_hangs_is_ended_and_started_again(run, engine, policies, reference):
    before = engine.gauges()["restarts"]

    async def play():
        await engine.load_weights(policies[1][2], 2)
        asked = await sampling(engine)
        os.kill(core_process(engine).pid, signal.SIGSTOP)
        return await asked, watches()

    done, watched = run(play())
    check(done, reference)
    assert watched == 1
    assert engine.gauges()["restarts"] == before + 1


def test_a_core_that_is_silent_but_answers_is_left_alone(run, engine, policies, reference):
    """As in one long step: here it stands still because it is told to."""
    before = engine.gauges()["restarts"]

    async def play():
        await engine.load_weights(policies[1][2], 2)
        asked = await sampling(engine)
        await engine._core.pause_generation(mode="keep", clear_cache=False)
        await asyncio.sleep(1.5 * engine._settings.silent_timeout_s)
        assert not asked.done()
        await engine._core.resume_generation()
        return await asked

    check(run(play()), reference)
    assert engine.gauges()["restarts"] == before
