"""What the learner makes of a model must be what the model itself says, or the model is refused when it is loaded."""

import numpy as np
import pytest
import torch
import transformers

from core.training.fits import misfit
from core.training.model import ModelError, build_lm
from core.training.packing import pack
from core.training.trainer import Trainer
from tests.unit.training.conftest import VOCAB, make_samples
from tests.unit.training.test_trainer import settings_for

SIZES = {
    "vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 48, "max_position_embeddings": 128, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
SOUND = {
    "Llama": {}, "Qwen2": {}, "Qwen3": {"head_dim": 8}, "Mistral": {"sliding_window": None}, "Phi3": {}, "Olmo2": {},
    "Gemma": {"head_dim": 8}, "Qwen3Moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
}  # fmt: skip
REFUSED = {
    "Granite": ({"logits_scaling": 8.0}, "at the head"),
    "Cohere": ({"logit_scale": 0.25}, "at the head"),
    "Phi": ({"resid_pdrop": 0.0}, "at the head"),
    "StableLm": ({}, "don't keep the sequences of a packed row apart"),
    "GptOss": ({"head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1,
                "layer_types": ["full_attention"] * 2}, "no sinks"),
    "Gemma2": ({"head_dim": 8, "sliding_window": 64}, "no sliding window|no soft cap"),
    "Llama": ({"attention_dropout": 0.1}, "dropout"),
}  # fmt: skip


def saved(family, fields, folder):
    """A model whose parameters are all drawn, biases too."""
    lm = build_lm(getattr(transformers, f"{family}Config")(**{**SIZES, **fields}), seed=1)
    g = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in lm.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=g))
    lm.save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("family", SOUND)
def test_a_model_that_is_taken_says_the_same_by_itself(tmp_path, family):
    folder = saved(family, SOUND[family], tmp_path)
    own = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    samples, wanted = make_samples(8), []
    for s in samples:
        ids, at = torch.tensor(s.ids.astype(np.int64)), np.flatnonzero(s.mask)
        logp = torch.log_softmax(own.eval()(ids[None]).logits[0].double(), -1)
        wanted.append(logp[at - 1, ids[at]])
    trainer = Trainer(settings_for(folder, kl_coef=0.0))
    got, _ = trainer.model(pack(samples, [0.0] * 8, [1.0] * 8))
    torch.testing.assert_close(got.double(), torch.cat(wanted), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", REFUSED)
def test_a_model_that_would_train_on_wrong_numbers_is_refused_in_one_line(tmp_path, family):
    fields, why = REFUSED[family]
    with pytest.raises(ModelError, match=f"{family}ForCausalLM.*can't be trained here: .*({why})") as refused:
        Trainer(settings_for(saved(family, fields, tmp_path), kl_coef=0.0))
    assert "\n" not in str(refused.value)


def test_looking_leaves_a_model_as_it_was(tmp_path):
    lm = build_lm(transformers.LlamaConfig(**SIZES), seed=1).train()
    before = {name: t.clone() for name, t in lm.state_dict().items()}
    assert misfit(lm) is None and lm.training and len(lm.model.layers) == 2 and not lm.model._forward_hooks
    assert all(bool((before[name] == t).all()) for name, t in lm.state_dict().items())
    with torch.no_grad():
        lm.model.norm.weight[0] = float("nan")
    assert "not finite" in (misfit(lm) or "")
