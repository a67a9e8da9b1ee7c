"""Products that are joined change no number and no name, for every model that they are joined in."""

import pytest
import torch
from torch import nn

from core.training.joined import join_products
from core.training.model import load_lm
from core.training.trainer import Trainer
from tests.unit.training.conftest import make_samples
from tests.unit.training.test_trainer import gradients, settings_for

SIZES = {
    "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 48, "max_position_embeddings": 128,
}  # fmt: skip


def folder_of(kind, tmp_path):
    import transformers

    from core.training.model import build_lm

    config = {
        "qwen3": lambda: transformers.Qwen3Config(**SIZES, head_dim=8),
        "qwen2": lambda: transformers.Qwen2Config(**SIZES),  # with biases
        "llama": lambda: transformers.LlamaConfig(**SIZES),
    }[kind]()
    lm = build_lm(config, seed=1)
    with torch.no_grad():
        for name, parameter in lm.named_parameters():
            if name.endswith("bias"):
                parameter.normal_()
    lm.save_pretrained(tmp_path)
    return str(tmp_path)


@pytest.mark.parametrize("kind", ["qwen3", "qwen2", "llama"])
def test_joined_products_change_no_gradient(kind, tmp_path):
    folder, samples = folder_of(kind, tmp_path), make_samples(8)
    a, want = gradients(Trainer(settings_for(folder, kl_coef=0.1, join_products=False)), samples)
    trainer = Trainer(settings_for(folder, kl_coef=0.1, join_products=True, activation_checkpointing="selective"))
    b, got = gradients(trainer, samples)
    assert b["loss"] == pytest.approx(a["loss"], abs=1e-6) and want.keys() == got.keys()
    for name, grad in want.items():
        torch.testing.assert_close(got[name], grad, atol=1e-6, rtol=1e-4)
    blocks = load_lm(folder).model.layers
    assert [join_products(block) for block in blocks] == [2, 2] and [join_products(block) for block in blocks] == [0, 0]


def test_generation_goes_the_model_s_own_way(policy_folder):
    plain, joined = load_lm(policy_folder).eval(), load_lm(policy_folder).eval()
    for block in joined.model.layers:
        join_products(block)
    ids = torch.arange(5)[None]
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(joined.generate(ids, **options), plain.generate(ids, **options))


def test_what_is_no_plain_linear_layer_is_left_alone(policy_folder):
    class Adapted(nn.Linear):
        pass

    block = load_lm(policy_folder).model.layers[0]
    block.mlp.up_proj = Adapted(32, 48, bias=False)
    block.self_attn.v_proj = Adapted(32, 16, bias=False)
    assert join_products(block) == 0
