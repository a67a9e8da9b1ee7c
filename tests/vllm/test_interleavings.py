"""While weights change: requests that come and go, updates that are cancelled or come together, deaths, a stop."""

import asyncio
import functools
import threading

import numpy as np
import pytest

from core.generation import vllm_compat
from core.generation.engine import Sampling
from core.generation.errors import EngineStopped
from core.generation.vllm_engine import VLLMEngine, VLLMSettings

TOLERANCE = 2e-3
PHASES = ("pause_generation", "start_weight_update", "update_weights", "finish_weight_update", "resume_generation")
"""The core's calls of an update, in order."""


def prompts(count):
    return np.random.default_rng(1).integers(4, 512, (count, 12)).tolist()


def at_each_phase(monkeypatch, core, act):
    """`await act(phase)` goes before each of the core's calls."""
    for phase in PHASES:

        def make(call, phase=phase):
            @functools.wraps(call)  # what a call takes is read from its signature
            async def after_act(*args, **named):
                await act(phase)
                return await call(*args, **named)

            return after_act

        monkeypatch.setattr(core, phase, make(getattr(core, phase)))


async def all_sampling(engine, count, tokens=30):
    """Until so many requests have so many tokens each."""
    while sum(made >= tokens for made in vllm_compat.tokens_so_far(engine._core).values()) < count:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


def exact_at_first(reference, prompt, done):
    """Version 0 sampled at least 30 tokens; none of a later version is counted as its own."""
    head = int((done.versions == 0).sum())
    assert head >= 30 and (np.diff(done.versions) >= 0).all()
    assert np.abs(done.logprobs[:head] - reference(0, prompt, done.ids.tolist())[:head]).max() < TOLERANCE


def exact(reference, version, prompt, done):
    assert set(done.versions) == {version}
    assert np.abs(done.logprobs - reference(version, prompt, done.ids.tolist())).max() < TOLERANCE


def test_requests_that_come_and_go_in_every_part_of_an_update(run, engine, policies, reference, monkeypatch):
    _, folders, manifests = policies
    old_prompts, new_prompts = prompts(len(PHASES) + 3), prompts(len(PHASES))

    async def play():
        await engine.load_weights(folders[0], 0)
        old = [asyncio.create_task(engine.generate(p, Sampling(max_new_tokens=300))) for p in old_prompts]
        await all_sampling(engine, len(old))
        new, gone = [], []

        async def act(phase):
            gone.append(old.pop())
            gone[-1].cancel()
            new.append(asyncio.create_task(engine.generate(new_prompts[len(new)], Sampling(max_new_tokens=40))))
            gone.append(asyncio.create_task(engine.generate([5, 6, 7], Sampling(max_new_tokens=40))))
            await asyncio.sleep(0)
            gone[-1].cancel()

        at_each_phase(monkeypatch, engine._core, act)
        assert await engine.load_weights(folders[1], 1, manifests[1].fingerprint) == manifests[1].fingerprint
        monkeypatch.undo()
        assert len(new) == len(PHASES)
        survived, made = await asyncio.gather(*old), await asyncio.gather(*new)
        await engine.check()
        return survived, made, await asyncio.gather(*gone, return_exceptions=True)

    survived, new, gone = run(play())
    assert all(isinstance(result, asyncio.CancelledError) for result in gone)
    for prompt, done in zip(new_prompts, new, strict=True):
        exact(reference, 1, prompt, done)
    for prompt, done in zip(old_prompts, survived, strict=False):
        assert set(done.versions) == {0, 1} and len(done.ids) == 300
        exact_at_first(reference, prompt, done)
    assert engine.spans_differed == 0 and engine.gauges()["running"] == engine.gauges()["waiting"] == 0
    assert not vllm_compat.tokens_so_far(engine._core)


def test_an_update_whose_caller_is_cancelled_ends_whole(run, engine, policies, reference, monkeypatch):
    """In each of its parts: nobody is left with a pause, or with half of the weights."""
    _, folders, manifests = policies
    (prompt,) = prompts(1)

    async def cancelled_at(phase, version):
        async def act(reached):
            if reached == phase:
                loading.cancel()
                await asyncio.sleep(0)

        at_each_phase(monkeypatch, engine._core, act)
        loading = asyncio.create_task(engine.load_weights(folders[version], version, manifests[version].fingerprint))
        with pytest.raises(asyncio.CancelledError):
            await loading
        while engine.version != version:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        done = await engine.generate(prompt, Sampling(max_new_tokens=12))
        monkeypatch.undo()
        return version, done

    async def play():
        return [await cancelled_at(phase, number % 3) for number, phase in enumerate(PHASES)]

    for version, done in run(play()):
        exact(reference, version, prompt, done)


def test_updates_that_come_together_are_made_one_after_the_other(run, engine, policies, reference, tmp_path):
    """One of them fails, which only its caller hears of."""
    _, folders, manifests = policies
    asked = prompts(4)

    async def play():
        await engine.load_weights(folders[0], 0)
        running = [asyncio.create_task(engine.generate(p, Sampling(max_new_tokens=1000))) for p in asked]
        await all_sampling(engine, len(running))
        results = await asyncio.gather(
            engine.load_weights(folders[1], 1, manifests[1].fingerprint),
            engine.load_weights(str(tmp_path / "gone"), 9),
            engine.load_weights(folders[2], 2, manifests[2].fingerprint),
            return_exceptions=True,
        )
        return results, await asyncio.gather(*running), await engine.generate(asked[0], Sampling(max_new_tokens=12))

    (first, failed, last), done, after = run(play())
    assert [first, last] == [manifests[1].fingerprint, manifests[2].fingerprint]
    assert isinstance(failed, FileNotFoundError)
    exact(reference, 2, asked[0], after)
    for prompt, completion in zip(asked, done, strict=True):
        assert completion.versions[-1] == 2
        exact_at_first(reference, prompt, completion)
    assert engine.spans_differed == 0


def test_requests_hear_of_a_death_that_an_update_sees_first(run, engine, policies, reference, monkeypatch):
    """The core dies as the last part of an update begins, and what would tell its requests is slow. They are told by
    whoever starts it again."""
    (prompt,) = prompts(1)
    before, slow = engine.gauges()["restarts"], threading.Event()

    async def play():
        await engine.load_weights(policies[1][1], 1)
        asked = asyncio.create_task(engine.generate(prompt, Sampling(max_new_tokens=400)))
        await all_sampling(engine, 1)
        resources = engine._core.engine_core.resources
        manager = resources.engine_manager
        shutdown = manager.shutdown

        def late(*args, **named):
            # The thread that noted the death, and has yet to tell it.
            if resources.engine_dead and threading.current_thread().name == "MPClientEngineMonitor":
                slow.wait()
            shutdown(*args, **named)

        async def act(phase):
            if phase == "finish_weight_update":
                vllm_compat.kill(engine._core)

        monkeypatch.setattr(manager, "shutdown", late)
        at_each_phase(monkeypatch, engine._core, act)
        loaded = await engine.load_weights(policies[1][2], 2, policies[2][2].fingerprint)
        done = await asked
        slow.set()
        return loaded, done

    try:
        loaded, done = run(play())
    finally:
        slow.set()
    assert loaded == policies[2][2].fingerprint and engine.gauges()["restarts"] == before + 1
    assert len(done.ids) == 400 and set(done.versions) <= {1, 2}
    head = int((done.versions == done.versions[0]).sum())
    expected = reference(int(done.versions[0]), prompt, done.ids.tolist())
    assert np.abs(done.logprobs - expected)[:head].max() < TOLERANCE


def test_an_engine_that_is_stopped_in_the_middle_of_an_update_tells_everybody(run, policies, monkeypatch):
    """Who runs, who waits at the gate, who updates and who waits to update."""
    settings = VLLMSettings(eager=True, max_sequences=4)
    engine = VLLMEngine(str(policies[0][0]), dtype="float32", context_tokens=1024, settings=settings)

    async def play():
        await engine.start()
        running = asyncio.create_task(engine.generate([5, 6, 7], Sampling(max_new_tokens=900)))
        await all_sampling(engine, 1)
        reached = asyncio.Event()

        async def act(phase):
            if phase == "update_weights":
                reached.set()
                await asyncio.Event().wait()

        at_each_phase(monkeypatch, engine._core, act)
        updates = [asyncio.create_task(engine.load_weights(policies[1][v], v)) for v in (1, 2)]
        await reached.wait()
        waiting = asyncio.create_task(engine.generate([5, 6, 7], Sampling(max_new_tokens=4)))
        await asyncio.sleep(0)
        await asyncio.gather(engine.stop(), engine.stop())
        return await asyncio.gather(running, waiting, *updates, return_exceptions=True)

    results = run(play())
    assert [type(result) for result in results] == [EngineStopped] * 4
    assert engine.version == 0
