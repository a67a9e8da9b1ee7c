"""The engine against transformers on the same ids: log-probs, versions, fingerprints, aborts, held-out evaluation."""

import asyncio

import numpy as np
import pytest

from core.generation import vllm_compat
from core.generation.engine import PromptTooLong, Sampling

TOLERANCE = 2e-3
"""Largest difference of a float32 log-prob between vLLM's kernels and transformers'; other weights differ by > 1."""


def prompts(count, length=12):
    rng = np.random.default_rng(0)
    return [rng.integers(4, 512, length).tolist() for _ in range(count)]


def test_log_probs_are_of_the_distribution_sampled_from(run, engine, policies, reference):
    async def sampled():
        await engine.load_weights(policies[1][0], 0)
        return await asyncio.gather(
            *(
                engine.generate(p, Sampling(max_new_tokens=24, temperature=t, top_k=k, top_p=share))
                for p, (t, k, share) in cases
            )
        )

    settings = ((1.0, 0, 1.0), (0.7, 0, 1.0), (1.0, 5, 1.0), (1.0, 0, 0.6), (0.8, 20, 0.9), (1.0, 1, 1.0))
    cases = [(p, asked) for p in prompts(3) for asked in settings]
    for (prompt, asked), done in zip(cases, run(sampled()), strict=True):
        assert len(done.ids) == 24 and done.finish == "length" and set(done.versions) == {0}
        expected = reference(0, prompt, done.ids.tolist(), *asked)
        assert np.abs(done.logprobs - expected).max() < TOLERANCE


def test_update_lands_in_the_middle_of_sequences(run, engine, policies, reference):
    """Every token has the version that sampled it, and that version's log-prob given all tokens before it."""
    _, folders, manifests = policies
    asked = prompts(12)

    async def play():
        assert await engine.load_weights(folders[0], 0) == manifests[0].fingerprint
        running = [asyncio.create_task(engine.generate(p, Sampling(max_new_tokens=300))) for p in asked]
        for version in (1, 2):
            before = min(engine_tokens(engine), default=0)
            while min(engine_tokens(engine), default=0) < before + 40:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert await engine.load_weights(folders[version], version) == manifests[version].fingerprint
        return await asyncio.gather(*running)

    done = run(play())
    assert engine.spans_differed == 0  # where vLLM reports versions itself, they are those counted at the pauses
    beyond = []
    for prompt, completion in zip(asked, done, strict=True):
        ids, versions = completion.ids.tolist(), completion.versions
        assert len(ids) == len(versions) == len(completion.logprobs) == 300
        assert sorted(set(versions)) == [0, 1, 2] and (np.diff(versions) >= 0).all()
        first = int((versions == 0).sum())
        # Tokens of version 0 saw only version 0's cache: exact. Later ones saw a cache that older weights wrote.
        old = np.abs(completion.logprobs - reference(0, prompt, ids))
        assert old[:first].max() < TOLERANCE
        assert np.abs(completion.logprobs[:first] - reference(1, prompt, ids)[:first]).max() > 1.0
        beyond.append(old[first])
    assert np.median(beyond) > 0.1  # not one token of the old weights is counted as the new ones'


def engine_tokens(engine):
    return list(vllm_compat.tokens_so_far(engine._core).values())


def test_completions_after_an_update_are_the_new_version_alone(run, engine, policies, reference):
    """Nothing of the old weights is left: not in the model, not in its packed copies, not in the prefix cache."""
    (prompt,) = prompts(1, length=200)  # whole blocks of it are in the prefix cache

    async def play():
        answers = []
        for version in (0, 1, 0, 2):
            await engine.load_weights(policies[1][version], version)
            for _ in range(2):
                answers.append((version, await engine.generate(prompt, Sampling(max_new_tokens=16))))
        return answers

    for version, done in run(play()):
        assert set(done.versions) == {version}
        assert np.abs(done.logprobs - reference(version, prompt, done.ids.tolist())).max() < TOLERANCE


def test_other_weights_are_refused_and_change_nothing(run, engine, policies, reference, tmp_path):
    from safetensors.torch import load_file, save_file

    (prompt,) = prompts(1)
    tensors = load_file(f"{policies[1][1]}/model.safetensors")
    short = tmp_path / "short"
    short.mkdir()
    save_file({k: v for k, v in tensors.items() if "layers.1." not in k}, short / "model.safetensors")
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    save_file(
        tensors | {"model.layers.7.mlp.up_proj.weight": tensors["model.norm.weight"].clone()},
        foreign / "model.safetensors",
    )

    async def play():
        await engine.load_weights(policies[1][0], 0)
        with pytest.raises(ValueError, match="lack"):
            await engine.load_weights(str(short), 5)
        with pytest.raises(ValueError, match=r"layers\.7"):
            await engine.load_weights(str(foreign), 5)
        with pytest.raises(FileNotFoundError):
            await engine.load_weights(str(tmp_path / "gone"), 5)
        return await engine.generate(prompt, Sampling(max_new_tokens=8))

    done = run(play())
    assert engine.version == 0 and set(done.versions) == {0}
    assert np.abs(done.logprobs - reference(0, prompt, done.ids.tolist())).max() < TOLERANCE


def test_the_fingerprint_is_of_what_was_loaded(run, engine, policies, tmp_path):
    """A tensor that differs in transit gives another fingerprint than the learner's."""
    from safetensors.torch import load_file, save_file

    for name in ("model.layers.1.self_attn.k_proj.weight", "model.layers.0.mlp.up_proj.weight", "model.norm.weight"):
        tensors = load_file(f"{policies[1][1]}/model.safetensors")
        tensors[name] = tensors[name] + 1
        folder = tmp_path / name
        folder.mkdir()
        save_file(tensors, folder / "model.safetensors")
        assert run(engine.load_weights(str(folder), 1)) != policies[2][1].fingerprint
    assert run(engine.load_weights(policies[1][1], 1)) == policies[2][1].fingerprint


def test_stop_ids_seeds_limits_and_greedy(run, engine, policies, reference):
    (prompt,) = prompts(1)

    async def play():
        await engine.load_weights(policies[1][0], 0)
        greedy = await engine.generate(prompt, Sampling(max_new_tokens=12, temperature=0))
        stop = int(greedy.ids[4])
        stopped = await engine.generate(prompt, Sampling(max_new_tokens=12, temperature=0, stop_ids=(stop,)))
        seeded = [await engine.generate(prompt, Sampling(max_new_tokens=12, seed=7)) for _ in range(2)]
        full = await engine.generate([5] * 4092, Sampling(max_new_tokens=50))
        with pytest.raises(PromptTooLong):
            await engine.generate([5] * 4096, Sampling(max_new_tokens=1))
        return greedy, stop, stopped, seeded, full

    greedy, stop, stopped, seeded, full = run(play())
    assert np.abs(greedy.logprobs - reference(0, prompt, greedy.ids.tolist())).max() < TOLERANCE
    assert stopped.finish == "stop" and stopped.ids[-1] == stop
    assert stopped.ids.tolist() == greedy.ids.tolist()[: len(stopped.ids)]
    assert seeded[0].ids.tolist() == seeded[1].ids.tolist()
    assert len(full.ids) == 4 and full.finish == "length"


def test_cancelled_requests_give_their_slots_back(run, engine):
    async def play():
        tasks = [asyncio.create_task(engine.generate(p, Sampling(max_new_tokens=900))) for p in prompts(8)]
        while engine.gauges()["running"] < 8:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        await engine.check()
        return results

    assert all(isinstance(result, asyncio.CancelledError) for result in run(play()))
    assert engine.gauges()["running"] == 0
    assert not engine_tokens(engine)


def test_requests_cancelled_on_their_way_in_are_not_left_in_the_core(run, engine, monkeypatch):
    """At every turn of the loop in which a request may be, also before the core has it."""
    client = engine._core.engine_core
    add = client.add_request_async

    async def slow(request):
        await add(request)
        await asyncio.sleep(0.02)  # as when the socket is full

    async def play():
        monkeypatch.setattr(client, "add_request_async", slow)
        for turns in (0, 1, 2, 3, 5, 8):
            task = asyncio.create_task(engine.generate([5, 6, 7], Sampling(max_new_tokens=4000)))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert engine.gauges()["waiting"] == engine.gauges()["running"] == 0 and not engine_tokens(engine)
        monkeypatch.undo()
        await asyncio.sleep(0.5)
        quiet = vllm_compat.heard_at(engine._core)
        await asyncio.sleep(0.5)
        return quiet, vllm_compat.heard_at(engine._core)

    quiet, later = run(play())
    assert quiet == later  # the core steps for nobody


def test_log_probs_leave_the_core_in_one_piece(run, engine, policies):
    """Beside requests of another kind, which get vLLM's own; both are the same numbers."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    asked = prompts(6)
    ours = vllm_compat.sampling_params(max_tokens=20, temperature=0.0, top_k=0, top_p=1.0, stop_ids=(), seed=1)
    own = [
        SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True, detokenize=False, logprobs=count,
                       flat_logprobs=True, output_kind=kind)
        for count, kind in ((2, RequestOutputKind.FINAL_ONLY), (0, RequestOutputKind.CUMULATIVE))
    ]  # fmt: skip

    async def play():
        await engine.load_weights(policies[1][0], 0)

        async def one(name, prompt, params):
            return await vllm_compat.collect(await vllm_compat.submit(engine._core, name, prompt, params, "pieces"))

        return await asyncio.gather(
            *(one(f"piece-{n}-{k}", p, params) for n, p in enumerate(asked) for k, params in enumerate((ours, *own)))
        )

    done = run(play())
    for packed, *others in zip(done[::3], done[1::3], done[2::3], strict=True):
        found = vllm_compat.logprobs(packed)
        assert vllm_compat.LOGPROBS in packed.kv_transfer_params and not packed.outputs[0].logprobs
        for other in others:
            assert other.kv_transfer_params is None and len(other.outputs[0].logprobs) == 20
            assert list(other.outputs[0].token_ids) == list(packed.outputs[0].token_ids)
            assert np.abs(vllm_compat.logprobs(other) - found).max() < TOLERANCE
        assert all(len(position) >= 2 for position in others[0].outputs[0].logprobs)
