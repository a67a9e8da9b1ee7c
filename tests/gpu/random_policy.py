"""A policy folder with random weights, made on the spot: the shape of a real model and the demo's tokenizer.

Nothing is downloaded. The tokenizer knows 512 tokens; ids above them, which such a policy samples too, spell nothing.
"""

import shutil
from pathlib import Path

import torch

SHAPES = {
    "tiny": dict(vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, head_dim=32, max_position_embeddings=8192),
    "0.6b": dict(vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28,
                 num_attention_heads=16, num_key_value_heads=8, head_dim=128, max_position_embeddings=40960),
}  # fmt: skip
DEMO = Path(__file__).parents[2] / "configs" / "policies" / "demo"


def make_policy(folder: Path, shape: str, dtype: torch.dtype, device: str) -> dict[str, torch.Tensor]:
    """Writes a Qwen3 of that shape with its tokenizer into `folder`; returns its parameters by name, on `device`."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        **SHAPES[shape], tie_word_embeddings=True, rope_theta=1e6, eos_token_id=3, pad_token_id=0, dtype=dtype
    )  # type: ignore[call-arg]
    with torch.device(device):
        model = Qwen3ForCausalLM(config).to(dtype)
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(DEMO / name, folder / name)
    return {name: parameter.detach() for name, parameter in model.named_parameters()}
