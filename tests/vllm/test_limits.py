"""Requests at the edges of what is allowed, and more of them at once than the engine has places for."""

import asyncio

import numpy as np
import pytest

from core.generation.engine import PromptTooLong, Sampling

TOLERANCE = 2e-3
CONTEXT = 4096
"""Of the engine that all tests share."""


def prompt_of(seed, length=12):
    return np.random.default_rng(seed).integers(4, 512, length).tolist()


def test_a_stop_id_as_the_last_token_allowed_is_a_stop(run, engine, policies):
    """And one that the limit cuts off before is none; the model's own end of text ends nothing by itself."""
    prompt = prompt_of(2)

    async def play():
        await engine.load_weights(policies[1][0], 0)
        ids = (await engine.generate(prompt, Sampling(max_new_tokens=12, seed=5))).ids.tolist()
        at = next(n for n in range(4, 12) if ids[n] not in ids[:n])
        limits = (at, at + 1, at + 2)
        stopped = await asyncio.gather(
            *(engine.generate(prompt, Sampling(max_new_tokens=n, seed=5, stop_ids=(ids[at],))) for n in limits)
        )
        one = await engine.generate(prompt, Sampling(max_new_tokens=1, seed=5, stop_ids=(ids[0],)))
        return ids, at, stopped, one

    ids, at, stopped, one = run(play())
    assert [(done.finish, done.ids.tolist()) for done in stopped] == [
        ("length", ids[:at]), ("stop", ids[: at + 1]), ("stop", ids[: at + 1]),
    ]  # fmt: skip
    assert (one.finish, one.ids.tolist()) == ("stop", ids[:1])


def test_the_models_own_end_of_text_ends_nothing_unless_it_is_a_stop_id(run, engine, policies):
    eos = 3

    async def play():
        await engine.load_weights(policies[1][0], 0)
        asked = [Sampling(max_new_tokens=400, seed=seed) for seed in range(12)]
        return await asyncio.gather(*(engine.generate(prompt_of(3), one) for one in asked))

    done = run(play())
    assert all(len(completion.ids) == 400 and completion.finish == "length" for completion in done)
    assert any(eos in completion.ids for completion in done)


def test_prompts_that_leave_one_place_none_or_are_empty(run, engine, policies, reference):
    prompt = prompt_of(4, CONTEXT - 1)

    async def play():
        await engine.load_weights(policies[1][1], 1)
        one = await engine.generate(prompt, Sampling(max_new_tokens=50))
        for length in (CONTEXT, CONTEXT + 1):
            with pytest.raises(PromptTooLong, match=f"{length} tokens, the context {CONTEXT}"):
                await engine.generate([5] * length, Sampling(max_new_tokens=1))
        with pytest.raises(ValueError, match="empty"):
            await engine.generate([], Sampling(max_new_tokens=1))
        return one

    one = run(play())
    assert len(one.ids) == 1 and one.finish == "length"
    assert np.abs(one.logprobs - reference(1, prompt, one.ids.tolist())).max() < TOLERANCE


@pytest.mark.parametrize("stranger", [512, -1, 2**31])
def test_an_id_that_the_model_does_not_know_is_refused_and_harms_nobody(run, engine, policies, stranger):
    """vLLM would hand it to the embedding, where it ends the core, and with it everybody's requests."""
    before = engine.gauges()["restarts"]

    async def play():
        other = asyncio.create_task(engine.generate(prompt_of(5), Sampling(max_new_tokens=60)))
        with pytest.raises(ValueError, match=rf"{stranger}.* 512"):
            await engine.generate([5, stranger, 6], Sampling(max_new_tokens=4))
        return await other

    assert len(run(play()).ids) == 60 and engine.gauges()["restarts"] == before


def test_many_more_requests_than_places_each_with_its_own_settings(run, engine, policies, reference):
    """Every kind of request beside every other in the same steps, greedy ones among those that are drawn."""
    kinds = ((1.0, 0, 1.0), (0.0, 0, 1.0), (0.7, 0, 1.0), (1.3, 5, 1.0), (1.0, 0, 0.6), (0.0, 20, 0.5), (0.8, 20, 0.9))
    asked = [(prompt_of(100 + number, 3 + number % 20), kinds[number % len(kinds)]) for number in range(400)]

    async def play():
        await engine.load_weights(policies[1][2], 2)
        return await asyncio.gather(
            *(
                engine.generate(
                    prompt, Sampling(max_new_tokens=6, temperature=heat, top_k=top_k, top_p=top_p, seed=number)
                )
                for number, (prompt, (heat, top_k, top_p)) in enumerate(asked)
            )
        )

    for (prompt, (heat, top_k, top_p)), done in zip(asked, run(play()), strict=True):
        assert len(done.ids) == 6 and set(done.versions) == {2}
        drawn = (heat, top_k, top_p) if heat else (1.0, 0, 1.0)  # greedy: of the unscaled, uncut distribution
        assert np.abs(done.logprobs - reference(2, prompt, done.ids.tolist(), *drawn)).max() < TOLERANCE
    assert engine.gauges()["running"] == engine.gauges()["waiting"] == 0
