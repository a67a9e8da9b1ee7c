"""Tiny random models, made here."""

from collections.abc import Callable

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

VOCAB, CONTEXT = 97, 512
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.3,
}


@pytest.fixture
def make_model() -> Callable[..., PreTrainedModel]:
    """make_model(kind, seed): kind `qwen3` (tied head) or `llama`; sharp enough that tokens differ in probability."""

    def make(kind: str = "qwen3", seed: int = 0) -> PreTrainedModel:
        torch.manual_seed(seed)
        if kind == "llama":
            model: PreTrainedModel = LlamaForCausalLM(LlamaConfig(**SHAPE))
        else:
            model = Qwen3ForCausalLM(Qwen3Config(**SHAPE, tie_word_embeddings=True))
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.data.uniform_(0.5, 1.5)
        return model.eval()

    return make
