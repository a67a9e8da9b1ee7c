import asyncio

import pytest
import torch

from core.generation import native
from core.generation.engine import Sampling
from core.generation.qwen3_decoder import Qwen3Decoder
from core.generation.transformers_engine import TransformersEngine

PROMPTS = [[5, 6, 7], list(range(40)), [96, 0, 1], [8] * 17, [2]]


def _walk(decoder, steps=140):
    """Logits along a fixed way, over the first enlargement of the cache and rows that leave."""
    with torch.inference_mode():
        seen = [decoder.add(PROMPTS, [None] * 5)]
        for step in range(steps):
            seen.append(decoder.step([(7 * row + step) % 97 for row in range(len(PROMPTS))]))
        decoder.keep([0, 4, 2])
        seen.append(decoder.step([3, 2, 1]))
        seen.append(decoder.add([[9, 9]], [None]))
        seen.append(decoder.step([1, 2, 3, 4]))
    return seen


@pytest.mark.parametrize("threads", [1, 2])
def test_compiled_attention_gives_what_torch_gives(make_model, threads):
    compiled = Qwen3Decoder(make_model(), 8, 512, threads=threads)
    if compiled._native is None:
        pytest.skip("no C compiler here")
    for ours, wanted in zip(_walk(compiled), _walk(Qwen3Decoder(make_model(), 8, 512, compiled=False)), strict=True):
        torch.testing.assert_close(ours, wanted, atol=1e-4, rtol=1e-4)


def test_without_a_compiler_the_engine_does_with_torch(make_model, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    shape = {"heads": 4, "kv_heads": 2, "dim": 16, "eps": 1e-6, "cos": torch.ones(8, 16), "sin": torch.ones(8, 16)}
    assert native.load(**shape) is None

    async def run():
        engine = TransformersEngine(make_model())
        await engine.start()
        completion = await engine.generate([1, 2], Sampling(max_new_tokens=4, seed=0))
        await engine.stop()
        return completion

    assert len(asyncio.run(run()).ids) == 4


def test_a_compiler_that_fails_and_a_home_that_cannot_be_written(monkeypatch, tmp_path):
    shape = {"heads": 2, "kv_heads": 1, "dim": 8, "eps": 1e-6, "cos": torch.ones(8, 8), "sin": torch.ones(8, 8)}
    if native.load(**shape) is None:
        pytest.skip("no C compiler here")
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert native.load(**shape) is not None
    assert list(tmp_path.glob("kernelmill-*/attend-*.so"))
    monkeypatch.setattr(native, "SOURCE", "not C")
    assert native.load(**shape) is None
