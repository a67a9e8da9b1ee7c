"""A policy folder of a few thousand parameters, and samples to train it on."""

import numpy as np
import pytest
import torch

from core.episodes.samples import Sample

VOCAB = 64


def make_samples(count: int = 12, seed: int = 0, group: int = 4, longest: int = 40) -> list[Sample]:
    """`count` samples in groups of `group`; lengths, ids, returns, log-probs and versions are drawn."""
    g = np.random.default_rng(seed)
    out = []
    for i in range(count):
        prompt, completion = int(g.integers(2, longest // 2)), int(g.integers(1, longest // 2))
        mask = np.r_[np.zeros(prompt, np.uint8), np.ones(completion, np.uint8)]
        out.append(
            Sample(
                group_id=f"g{i // group}", index=i % group, turn=0, role="generator", mask=mask,
                ids=g.integers(0, VOCAB, prompt + completion, dtype=np.int32),
                logprobs=np.where(mask, g.normal(-4.2, 0.3, len(mask)), 0).astype(np.float32),
                versions=np.where(mask, g.integers(-2, 1, len(mask)), -1).astype(np.int32),
                ret=float(g.choice([0.0, 0.1, 0.3, 1.3])),
            )
        )  # fmt: skip
    return out


@pytest.fixture(scope="session")
def policy_folder(tmp_path_factory) -> str:
    from transformers import Qwen3Config

    from core.training.model import build_lm

    config = Qwen3Config(
        vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        intermediate_size=48, max_position_embeddings=128, tie_word_embeddings=True,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("policy")
    build_lm(config, seed=1).save_pretrained(folder)
    torch.manual_seed(0)
    return str(folder)
