import asyncio
import copy

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import DynamicCache

from core.generation import qwen3_decoder
from core.generation.decoders import CachedDecoder
from core.generation.engine import PromptTooLong, Sampling
from core.generation.transformers_engine import EngineStopped, TransformersEngine
from tests.unit.generation import multimodal
from tests.unit.generation.multimodal import tiny_multimodal

VOCAB, CONTEXT = 97, 512
PROMPTS = [[5, 6, 7], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11], [5, 6, 7], [96, 0, 1, 50, 51]]
ENGINES = {
    "compiled": ("qwen3", {}),
    "written": ("qwen3", {"compiled": False}),
    "generic": ("qwen3", {"generic": True}),
    "llama": ("llama", {}),
}


@pytest.fixture(params=list(ENGINES))
def make_engine(request, make_model):
    kind, how = ENGINES[request.param]

    def make(**options):
        model = make_model(kind)
        assert qwen3_decoder.applies(model) == (kind == "qwen3")
        return TransformersEngine(model, **how, **options)

    return make


def with_engine(engine, use):
    async def run():
        await engine.start()
        try:
            return await use(engine)
        finally:
            await engine.stop()

    return asyncio.run(run())


async def until(condition):
    while not condition():  # noqa: ASYNC110 - the gauges of another thread have no event
        await asyncio.sleep(0.001)


def teacher_forced(model, prompt, ids, temperature=1.0, top_p=1.0, top_k=0):
    """Log-probs [completion tokens] by the model's own forward over the whole sequence."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
    logits = logits / (temperature or 1.0)
    if top_k:
        logits = logits.masked_fill(
            logits < logits.sort(-1, descending=True).values[:, top_k - 1 : top_k], float("-inf")
        )
    if top_p < 1:
        ordered, order = logits.softmax(-1).sort(-1, descending=True)
        for row, (probs, tokens) in enumerate(zip(ordered, order, strict=True)):
            kept = int((probs.cumsum(0) < top_p).sum()) + 1
            logits[row, tokens[kept:]] = float("-inf")
    return logits.log_softmax(-1).gather(-1, torch.tensor(ids, dtype=torch.long)[:, None])[:, 0].numpy()


@pytest.mark.parametrize(
    ("temperature", "top_p", "top_k"),
    [(1.0, 1.0, 0), (0.7, 1.0, 0), (1.0, 0.8, 0), (0.0, 1.0, 0), (1.0, 1.0, 5), (0.7, 0.8, 20)],
)
def test_logprobs_are_those_of_a_teacher_forced_forward(make_engine, temperature, top_p, top_k):
    engine = make_engine(batch_rows=3)

    async def use(engine):
        sampling = [
            Sampling(max_new_tokens=10 + 25 * i, temperature=temperature, top_p=top_p, top_k=top_k, seed=i)
            for i in range(len(PROMPTS))
        ]
        return await asyncio.gather(*map(engine.generate, PROMPTS, sampling))

    for i, completion in enumerate(with_engine(engine, use)):
        assert completion.finish == "length" and len(completion.ids) == 10 + 25 * i
        assert (completion.ids.dtype, completion.logprobs.dtype) == (np.int32, np.float32)
        expected = teacher_forced(engine.model, PROMPTS[i], completion.ids.tolist(), temperature, top_p, top_k)
        np.testing.assert_allclose(completion.logprobs, expected, atol=1e-4)


def test_a_request_draws_the_same_alone_and_beside_others(make_engine):
    def ask(engine, i):
        return engine.generate(PROMPTS[i], Sampling(max_new_tokens=5 + 12 * i, seed=i))

    async def together(engine):
        return await asyncio.gather(*(ask(engine, i) for i in range(4)))

    async def alone(engine):
        return [await ask(engine, i) for i in range(4)]

    for a, b in zip(with_engine(make_engine(batch_rows=3), together), with_engine(make_engine(), alone), strict=True):
        assert a.ids.tolist() == b.ids.tolist()
        np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-4)


def test_rows_of_one_prompt_differ_by_seed_and_greedy_ones_do_not(make_engine):
    async def use(engine):
        return await asyncio.gather(
            *(engine.generate(PROMPTS[0], Sampling(max_new_tokens=12, seed=i)) for i in range(2)),
            *(engine.generate(PROMPTS[0], Sampling(max_new_tokens=12, temperature=0.0)) for _ in range(2)),
            *(engine.generate(PROMPTS[0], Sampling(max_new_tokens=12)) for _ in range(2)),
        )

    ids = [completion.ids.tolist() for completion in with_engine(make_engine(), use)]
    assert ids[0] != ids[1] and ids[2] == ids[3] and ids[4] != ids[5]


def test_weights_swapped_in_the_middle(make_engine, make_model, tmp_path):
    engine = make_engine(batch_rows=2)
    old = copy.deepcopy(engine._source)
    kind = type(old).__name__.removesuffix("ForCausalLM").lower()
    new = make_model(kind, seed=1)
    save_file({name: p.detach().clone() for name, p in new.named_parameters()}, tmp_path / "model.safetensors")

    async def use(engine):
        running = [
            asyncio.create_task(engine.generate(prompt, Sampling(max_new_tokens=480, seed=i)))
            for i, prompt in enumerate(PROMPTS[:2])
        ]
        await until(lambda: engine.gauges()["tokens_total"] >= 20)
        await engine.load_weights(str(tmp_path), 7)
        assert engine.version == 7
        return await asyncio.gather(*running, engine.generate([3, 1], Sampling(max_new_tokens=5, seed=0)))

    *mixed, fresh = with_engine(engine, use)
    assert fresh.versions.tolist() == [7] * 5
    np.testing.assert_allclose(fresh.logprobs, teacher_forced(new, [3, 1], fresh.ids.tolist()), atol=1e-4)
    for prompt, completion in zip(PROMPTS, mixed, strict=False):
        ids, count = completion.ids.tolist(), int((completion.versions == 0).sum())
        assert completion.versions.tolist() == [0] * count + [7] * (len(ids) - count)
        assert 0 < count < len(ids)
        before = teacher_forced(old, prompt, ids[:count])
        # Rows go on with the keys and values that the old weights left behind.
        cache = {CachedDecoder(old)._cache_name: DynamicCache()}
        with torch.no_grad():
            old(input_ids=torch.tensor([[*prompt, *ids[: count - 1]]]), **cache)
            logits = new(input_ids=torch.tensor([ids[count - 1 : -1]]), **cache).logits[0]
        after = logits.log_softmax(-1).gather(-1, torch.tensor(ids[count:])[:, None])[:, 0].numpy()
        np.testing.assert_allclose(completion.logprobs, np.concatenate([before, after]), atol=1e-4)


def test_fingerprint_is_that_of_the_published_tensors(make_engine, make_model, tmp_path):
    from core.weights.fingerprint import fingerprint

    engine = make_engine()
    new = make_model(type(engine._source).__name__.removesuffix("ForCausalLM").lower(), seed=1)
    tensors = {name: p.detach().clone() for name, p in new.named_parameters()}
    save_file(tensors, tmp_path / "model.safetensors")
    assert with_engine(engine, lambda e: e.load_weights(str(tmp_path), 1)) == fingerprint(tensors.items())


@pytest.mark.parametrize("wrong", ["shape", "missing", "unknown"])
def test_weights_of_another_model_are_refused_and_the_engine_goes_on(make_model, tmp_path, wrong):
    engine = TransformersEngine(make_model())
    tensors = {name: p.detach().clone() for name, p in make_model(seed=1).named_parameters()}
    name = "model.norm.weight"
    if wrong == "shape":
        tensors[name] = tensors[name][:-1].clone()
    elif wrong == "missing":
        del tensors[name]
    else:
        tensors["other"] = torch.zeros(1)
    save_file(tensors, tmp_path / "model.safetensors")

    async def use(engine):
        with pytest.raises(ValueError, match=name if wrong != "unknown" else "other"):
            await engine.load_weights(str(tmp_path), 1)
        return await engine.generate([1], Sampling(max_new_tokens=3, seed=0))

    assert with_engine(engine, use).versions.tolist() == [0, 0, 0]


def test_a_prompt_that_goes_on_reuses_what_is_cached(make_engine, make_model, tmp_path):
    engine = make_engine(batch_rows=3)
    kind = type(engine._source).__name__.removesuffix("ForCausalLM").lower()
    new = make_model(kind, seed=1)
    save_file({name: p.detach().clone() for name, p in new.named_parameters()}, tmp_path / "model.safetensors")
    old = copy.deepcopy(engine._source)

    async def use(engine):
        first = await asyncio.gather(
            *(engine.generate(PROMPTS[i], Sampling(max_new_tokens=9 + 5 * i, seed=i)) for i in range(3))
        )
        prompts = [[*PROMPTS[i], *first[i].ids.tolist(), *range(1 + 3 * i)] for i in range(3)] + [[7, 7, 7]]
        second = await asyncio.gather(
            *(engine.generate(prompt, Sampling(max_new_tokens=12, seed=5)) for prompt in prompts)
        )
        reused = engine.gauges()["reused_total"]
        await engine.load_weights(str(tmp_path), 1)
        third = await engine.generate(prompts[0], Sampling(max_new_tokens=12, seed=5))
        return prompts, second, reused, third, engine.gauges()["reused_total"]

    prompts, second, reused, third, reused_after = with_engine(engine, use)
    # All but each completion's last token, which was never fed.
    can_reuse = type(engine._decoder()) is qwen3_decoder.Qwen3Decoder
    expected = sum(len(PROMPTS[i]) + 8 + 5 * i for i in range(3)) if can_reuse else 0
    assert reused == reused_after == expected
    for prompt, completion in zip(prompts, second, strict=True):
        wanted = teacher_forced(old, prompt, completion.ids.tolist())
        np.testing.assert_allclose(completion.logprobs, wanted, atol=1e-4)
    np.testing.assert_allclose(third.logprobs, teacher_forced(new, prompts[0], third.ids.tolist()), atol=1e-4)


def test_stop_ids_end_a_completion_and_belong_to_it(make_engine):
    stops = tuple(range(0, VOCAB, 7))

    async def use(engine):
        sampling = [Sampling(max_new_tokens=400, stop_ids=stops, seed=seed) for seed in range(6)]
        return await asyncio.gather(*(engine.generate(PROMPTS[0], one) for one in sampling))

    for completion in with_engine(make_engine(), use):
        *before, last = completion.ids.tolist()
        assert completion.finish == "stop" and last in stops and not set(before) & set(stops)


def test_the_context_bounds_a_completion(make_engine):
    async def use(engine):
        assert engine.context_tokens == 40
        full = await engine.generate([1] * 33, Sampling(max_new_tokens=100, seed=0))
        with pytest.raises(PromptTooLong, match="40 tokens, the context 40"):
            await engine.generate([1] * 40, Sampling(max_new_tokens=1))
        with pytest.raises(ValueError, match="empty"):
            await engine.generate([], Sampling(max_new_tokens=1))
        return full

    completion = with_engine(make_engine(context_tokens=40), use)
    assert len(completion.ids) == 7 and completion.finish == "length"


@pytest.mark.parametrize("stranger", [10**6, -1])
def test_an_id_that_the_model_does_not_know_is_refused_and_harms_nobody(make_engine, stranger):
    async def use(engine):
        other = asyncio.create_task(engine.generate(PROMPTS[0], Sampling(max_new_tokens=20, seed=0)))
        with pytest.raises(ValueError, match=f"the id {stranger}, the model knows ids below"):
            await engine.generate([1, stranger, 2], Sampling(max_new_tokens=1))
        return await other

    assert len(with_engine(make_engine(), use).ids) == 20


def test_cancelling_gives_the_slot_back(make_engine):
    async def use(engine):
        endless = asyncio.create_task(engine.generate(PROMPTS[1], Sampling(max_new_tokens=10_000, seed=0)))
        await until(lambda: engine.gauges()["tokens_total"] >= 5)
        waiting = asyncio.create_task(engine.generate(PROMPTS[2], Sampling(max_new_tokens=10_000)))
        short = asyncio.create_task(engine.generate(PROMPTS[0], Sampling(max_new_tokens=30, seed=3)))
        await asyncio.sleep(0)
        waiting.cancel()
        endless.cancel()
        completion = await short
        with pytest.raises(asyncio.CancelledError):
            await endless
        await until(lambda: not engine.gauges()["running"])
        return completion, engine.gauges()["tokens_total"]

    engine = make_engine(batch_rows=1)
    completion, tokens = with_engine(engine, use)
    expected = teacher_forced(engine.model, PROMPTS[0], completion.ids.tolist())
    np.testing.assert_allclose(completion.logprobs, expected, atol=1e-4)
    assert tokens < 30 + CONTEXT


def test_the_context_of_a_multimodal_model_is_its_language_models():
    async def use(engine):
        completion = await engine.generate(PROMPTS[0], Sampling(max_new_tokens=10_000, seed=1))
        return engine.context_tokens, completion

    engine = TransformersEngine(tiny_multimodal())
    context, completion = with_engine(engine, use)
    assert context == multimodal.CONTEXT == len(PROMPTS[0]) + len(completion.ids)


def test_stopping_fails_what_runs_and_what_waits(make_engine):
    engine = make_engine(batch_rows=1)

    async def run():
        await engine.start()
        asked = [asyncio.create_task(engine.generate([1], Sampling(max_new_tokens=500))) for _ in range(3)]
        await until(lambda: engine.gauges()["running"])
        await engine.stop()
        results = await asyncio.gather(*asked, return_exceptions=True)
        with pytest.raises(EngineStopped):
            await engine.generate([1], Sampling(max_new_tokens=1))
        return results

    assert all(isinstance(result, EngineStopped) for result in asyncio.run(run()))


def test_a_broken_model_fails_every_request_with_its_cause(make_model, monkeypatch):
    engine = TransformersEngine(make_model("llama"))
    monkeypatch.setattr("threading.excepthook", lambda _: None)

    async def run():
        await engine.start()
        engine.model.lm_head = torch.nn.Linear(3, 3)
        results = await asyncio.gather(
            *(engine.generate([1], Sampling(max_new_tokens=1)) for _ in range(2)), return_exceptions=True
        )
        await engine.stop()
        return results

    for result in asyncio.run(run()):
        assert isinstance(result, EngineStopped) and isinstance(result.__cause__, RuntimeError)


def test_gauges_count_what_was_sampled(make_engine):
    async def use(engine):
        await engine.generate([1, 2], Sampling(max_new_tokens=9, seed=0))
        return engine.gauges()

    gauges = with_engine(make_engine(), use)
    assert gauges["tokens_total"] == 9 and gauges["prefilled_total"] == 2 and gauges["busy_s"] > 0
    assert gauges["running"] == gauges["waiting"] == 0
