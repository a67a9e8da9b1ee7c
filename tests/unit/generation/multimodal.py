"""A tiny multimodal model: the fields of its language model stand in `text_config` alone."""

from typing import Any

CONTEXT = 64


def tiny_multimodal() -> Any:
    """A Gemma-3 with a vision tower, fresh float32 weights: what `AutoModelForCausalLM` makes of such a folder."""
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    width = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2}
    text = {"vocab_size": 97, "num_hidden_layers": 2, "num_key_value_heads": 1, "head_dim": 16}
    vision = {"num_hidden_layers": 1, "image_size": 28, "patch_size": 14}
    config = Gemma3Config(
        text_config={**width, **text, "max_position_embeddings": CONTEXT}, vision_config={**width, **vision}
    )
    assert not hasattr(config, "max_position_embeddings")
    return Gemma3ForConditionalGeneration(config).eval()
