"""Held-out evaluation beside training on one engine: nobody is aborted, a pin holds a version, for a bounded time."""

import asyncio

import pytest
from safetensors.torch import save_file

from core.generation.engine import Sampling
from core.generation.lanes import Lanes, PinLost
from core.generation.transformers_engine import TransformersEngine
from tests.unit.generation.paced import paced


@pytest.fixture
def folders(make_model, tmp_path):
    for version in (1, 2):
        (tmp_path / str(version)).mkdir()
        weights = {name: p.detach().clone() for name, p in make_model(seed=version).named_parameters()}
        save_file(weights, tmp_path / str(version) / "model.safetensors")
    return {version: str(tmp_path / str(version)) for version in (1, 2)}


def with_lanes(make_model, use):
    async def run():
        lanes = Lanes(TransformersEngine(make_model()))
        await lanes.start()
        try:
            async with asyncio.timeout(200):
                return await use(lanes)
        finally:
            await lanes.stop()

    return asyncio.run(run())


def test_a_swap_waits_for_the_evaluation_and_training_goes_on(make_model, folders):
    async def use(lanes):
        training = asyncio.create_task(lanes.generate([5, 6, 7], Sampling(max_new_tokens=400)))
        async with lanes.pinned(hold_s=50) as view:
            swap = asyncio.create_task(lanes.load_weights(folders[1], 1))
            held_out = [await view.generate([5, 6], Sampling(max_new_tokens=20, temperature=t)) for t in (0, 1, 1)]
            assert view.version == lanes.version == 0 and not swap.done()
        await swap
        return held_out, await training, lanes

    held_out, training, lanes = with_lanes(make_model, use)
    assert all(set(done.versions) == {0} for done in held_out)
    assert len(training.ids) == 400 and set(training.versions) <= {0, 1}
    gauges = lanes.gauges()
    assert lanes.version == 1 and gauges["held_back_s"] > 0
    assert gauges["sequence_s"] >= gauges["busy_s"] > 0, "while the engine is busy there is a sequence at least"


def test_a_pin_is_lost_after_its_bound_and_says_so(make_model, folders, monkeypatch):
    paced(monkeypatch)

    async def use(lanes):
        training = asyncio.create_task(lanes.generate([5, 6, 7], Sampling(max_new_tokens=400)))
        async with lanes.pinned(hold_s=0) as view:
            caught = asyncio.create_task(view.generate([5], Sampling(max_new_tokens=400)))
            while lanes.gauges()["running"] < 2:  # noqa: ASYNC110 - the gauges of another thread have no event
                await asyncio.sleep(0.001)
            await lanes.load_weights(folders[1], 1)
            with pytest.raises(PinLost, match="version 1 has replaced it"):
                await caught
            with pytest.raises(PinLost, match="version 0 was pinned"):
                await view.generate([5], Sampling(max_new_tokens=4))
        return await training

    training = with_lanes(make_model, use)
    assert len(training.ids) == 400 and set(training.versions) == {0, 1}


def test_a_pin_that_comes_while_a_swap_waits_gets_the_new_version(make_model, folders):
    async def use(lanes):
        async with lanes.pinned(hold_s=50):
            swap = asyncio.create_task(lanes.load_weights(folders[2], 2))
            await asyncio.sleep(0)

            async def second():
                async with lanes.pinned(hold_s=50) as view:
                    return view.version, await view.generate([5], Sampling(max_new_tokens=4))

            late = asyncio.create_task(second())
        await swap
        return await late

    version, done = with_lanes(make_model, use)
    assert version == 2 and set(done.versions) == {2}


def test_a_pin_that_comes_between_two_swaps_waits_for_both(make_model, folders):
    """The first is over while the second is under way: a pin of the first's version would be lost at once."""

    async def use(lanes):
        load, second = lanes.engine.load_weights, asyncio.Event()

        async def noted(source, version, fingerprint=""):
            if version == 2:
                await second.wait()
            return await load(source, version, fingerprint)

        lanes.engine.load_weights = noted
        swaps = [asyncio.create_task(lanes.load_weights(folders[version], version)) for version in (1, 2)]
        await swaps[0]

        async def late():
            async with lanes.pinned(hold_s=50) as view:
                return view.version, await view.generate([5], Sampling(max_new_tokens=4))

        pinned = asyncio.create_task(late())
        await asyncio.sleep(0)
        second.set()
        await swaps[1]
        return await pinned

    version, done = with_lanes(make_model, use)
    assert version == 2 and set(done.versions) == {2}


def test_a_view_can_neither_swap_nor_stop_the_engine(make_model, folders):
    async def use(lanes):
        async with lanes.pinned(hold_s=1) as view:
            for forbidden in (view.load_weights(folders[1], 1), view.stop(), view.start()):
                with pytest.raises(RuntimeError):
                    await forbidden
        with pytest.raises(ValueError, match="hold_s"):
            async with lanes.pinned(hold_s=-1):
                pass

    with_lanes(make_model, use)
