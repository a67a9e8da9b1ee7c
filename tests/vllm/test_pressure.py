"""A cache too small for the sequences that run, and engines that are stopped while they start."""

import asyncio
import time

import numpy as np
import psutil
import pytest
import torch

from core.generation.engine import Sampling
from core.generation.errors import EngineStopped
from core.generation.vllm_engine import VLLMEngine, VLLMSettings

TOLERANCE = 2e-3
SEQUENCES, TOKENS, BLOCK, BLOCKS = 8, 400, 128, 7


def new_engine(policies):
    settings = VLLMSettings(
        eager=True, max_sequences=SEQUENCES, extra={"num_gpu_blocks_override": BLOCKS, "block_size": BLOCK}
    )
    return VLLMEngine(str(policies[0][0]), dtype="float32", context_tokens=512, settings=settings)


def cores():
    children = psutil.Process().children(recursive=True)
    return {child for child in children if "EngineCore" in child.name() and child.status() != psutil.STATUS_ZOMBIE}


@pytest.fixture(scope="module")
def small(run, policies):
    made = new_engine(policies)
    run(made.start())
    yield made
    run(made.stop())


def test_sequences_that_are_put_back_keep_their_tokens_and_versions(run, small, policies, reference):
    """All start, since each needs one block then; they need four times that before they end, so that some are put
    back, and read their own tokens again later, under other weights."""
    assert SEQUENCES * (TOKENS // BLOCK + 1) > 4 * BLOCKS
    asked = np.random.default_rng(0).integers(4, 512, (SEQUENCES, 12)).tolist()

    async def play():
        running = [asyncio.create_task(small.generate(p, Sampling(max_new_tokens=TOKENS))) for p in asked]
        for version in (1, 2):
            at = small.gauges()["tokens_total"]
            while small.gauges()["tokens_total"] < at + 2 * TOKENS:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            await small.load_weights(policies[1][version], version)
        return await asyncio.gather(*running)

    done = run(play())
    assert small.spans_differed == 0
    assert {version for completion in done for version in completion.versions} == {0, 1, 2}
    for prompt, completion in zip(asked, done, strict=True):
        ids, versions = completion.ids.tolist(), completion.versions
        assert len(ids) == len(completion.logprobs) == TOKENS and (np.diff(versions) >= 0).all()
        first = int(versions[0])
        head = int((versions == first).sum())
        assert np.abs(completion.logprobs[:head] - reference(first, prompt, ids)[:head]).max() < TOLERANCE


def all_gone(others, within_s=30.0):
    """Whether no core is left but `others`; one that was told to end takes a moment on a busy machine."""
    end = time.monotonic() + within_s
    while not cores() <= others and time.monotonic() < end:
        time.sleep(0.1)
    return cores() <= others


def test_an_engine_that_is_stopped_while_it_starts_again_leaves_no_process(run, small):
    others = cores()

    async def play():
        asked = asyncio.create_task(small.generate([5, 6, 7], Sampling(max_new_tokens=400)))
        while small.gauges()["running"] < 1:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        (process,) = small._core.engine_core.resources.engine_manager.processes
        others.discard(psutil.Process(process.pid))
        process.kill()
        while small.gauges()["restarts"] < 1:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await small.stop()
        with pytest.raises(EngineStopped):
            await asked

    run(play())
    assert all_gone(others)


def test_an_engine_that_is_stopped_while_it_warms_up_ends_at_once(run, policies):
    """The tokens that it samples to warm up never come."""
    others, engine = cores(), new_engine(policies)

    async def play():
        starting = asyncio.create_task(engine.start())
        while engine._core is None or not engine._core.output_processor.request_states:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await engine.stop()
        async with asyncio.timeout(200):
            with pytest.raises(EngineStopped):
                await starting

    run(play())
    assert all_gone(others)


def test_weights_that_are_late_get_no_memory_that_newer_ones_use():
    from core.generation.vllm_worker import _Stage, _Turn

    stage = _Stage()
    stage.ticket = 2
    with pytest.raises(RuntimeError, match="ticket 1 was given up"):
        _Turn(stage, 1).hold([])
    if torch.cuda.is_available():  # else there is no such memory
        ((_, held),) = _Turn(stage, 2).hold([("w", torch.arange(8.0))])
        assert held.tolist() == list(range(8))
