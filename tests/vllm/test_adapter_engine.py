"""Adapters alone into a running vLLM: it then holds their sum with its own weights, proven by the fingerprint."""

import asyncio

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from core.generation.engine import Sampling
from core.weights.adapters import Part, merged
from core.weights.outgoing import Outgoing

TOLERANCE = 2e-3


def test_adapters_in_the_middle_of_sequences(run, engine, policies, tmp_path):
    """The engine's own folder is model 0. Two updates: the second is added to it as well, not to the first's sum."""
    model = AutoModelForCausalLM.from_pretrained(policies[0][0], dtype="float32").eval()
    weights = {name: tensor.detach() for name, tensor in model.named_parameters()}
    outgoing = Outgoing("adapter", device=torch.device("cpu"))

    def publish(version):
        draw = torch.Generator().manual_seed(version)
        parts = [
            Part(name, torch.randn(4, w.shape[1], generator=draw), 0.2 * torch.randn(len(w), 4, generator=draw), 2.0)
            for name, w in weights.items()
            if name.endswith("_proj.weight")
        ]
        whole = weights | {part.name: merged(weights[part.name], part, torch.float32) for part in parts}
        return whole, outgoing.publish(tmp_path, version, whole.items(), parts=parts)

    prompt = list(range(4, 16))

    async def play():
        await engine.load_weights(policies[1][0], 0)
        across = asyncio.create_task(engine.generate(prompt, Sampling(max_new_tokens=400)))
        while engine.gauges()["running"] < 1:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        for version in (1, 2):
            whole, manifest = await asyncio.to_thread(publish, version)
            assert await engine.load_weights(manifest.source, version, manifest.fingerprint) == manifest.fingerprint
        return await across, await engine.generate(prompt, Sampling(max_new_tokens=24)), whole

    across, done, whole = run(play())
    outgoing.close()
    assert set(done.versions) == {2} and 2 in across.versions
    model.load_state_dict(whole, strict=False)
    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt, *done.ids.tolist()]])).logits[0, len(prompt) - 1 : -1]
    expected = torch.log_softmax(logits, -1)[torch.arange(len(done.ids)), torch.tensor(done.ids)].numpy()
    assert np.abs(done.logprobs - expected).max() < TOLERANCE
