"""Two tensor-parallel workers: the fingerprint is of all shards together, sharded, replicated and fused ones."""

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from core.generation.engine import Sampling
from core.generation.vllm_engine import VLLMEngine, VLLMSettings
from core.weights import filesystem

TOLERANCE = 2e-3


def made(seed):
    """One key-value head, so that it is replicated; a head of its own, sharded as the embedding is."""
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=500, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=1, head_dim=32, max_position_embeddings=1024, tie_word_embeddings=False,
            initializer_range=0.1, eos_token_id=3, dtype="float32",
        )
    ).eval()  # fmt: skip


def test_fingerprints_join_all_shards(run, tmp_path, monkeypatch):
    # vLLM would bind each worker to a NUMA node of its own, and refuses to start where there are fewer.
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    # Two workers that each take every core would wait for each other at each collective.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    made(0).save_pretrained(tmp_path / "model")
    new = made(1)
    weights = dict(new.named_parameters())
    manifest = filesystem.publish(tmp_path / "weights", 1, weights.items(), keep=9)
    wrong = []
    for number, name in enumerate(
        ("model.embed_tokens.weight", "lm_head.weight", "model.layers.1.self_attn.q_proj.weight",
         "model.layers.0.self_attn.v_proj.weight", "model.layers.1.self_attn.o_proj.weight",
         "model.layers.0.mlp.up_proj.weight", "model.layers.1.mlp.down_proj.weight", "model.norm.weight"), start=2,
    ):  # fmt: skip
        with torch.no_grad():
            other = weights | {name: weights[name] + 1}
        filesystem.publish(tmp_path / "weights", number, other.items(), keep=99)
        wrong.append((number, str(filesystem.version_folder(tmp_path / "weights", number))))
    engine = VLLMEngine(
        str(tmp_path / "model"), dtype="float32", context_tokens=512,
        settings=VLLMSettings(eager=True, max_sequences=4, tensor_parallel=2),
    )  # fmt: skip
    prompt = list(range(4, 16))

    async def play():
        await engine.start()
        try:
            folder = str(filesystem.version_folder(tmp_path / "weights", 1))
            others = [await engine.load_weights(source, version) for version, source in wrong]
            found = await engine.load_weights(folder, 1)
            return found, others, await engine.generate(prompt, Sampling(max_new_tokens=24))
        finally:
            await engine.stop()

    found, others, done = run(play())
    assert found == manifest.fingerprint and len({found, *others}) == len(others) + 1
    with torch.inference_mode():
        logits = new(torch.tensor([[*prompt, *done.ids.tolist()]])).logits[0, len(prompt) - 1 : -1]
    expected = torch.log_softmax(logits, -1)[torch.arange(len(done.ids)), torch.tensor(done.ids)].numpy()
    assert np.abs(done.logprobs - expected).max() < TOLERANCE
