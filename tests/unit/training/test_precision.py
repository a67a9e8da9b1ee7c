"""Masters on one rank, recomputation of activations, filled rows: none may change what is trained."""

import msgspec
import pytest
import torch

from core.training.flops import attention_flops, multiplying_parameters, peak_flops, step_flops
from core.training.masters import Masters
from core.training.model import build_lm
from core.training.packing import pack
from core.training.ranks import RankGroup
from core.training.settings import TrainerSettings
from core.training.trainer import Trainer
from tests.unit.training.conftest import make_samples
from tests.unit.training.test_trainer import gradients, settings_for, weights_of


def test_masters_sum_micro_batches_in_float32_and_parameters_follow():
    module = torch.nn.Linear(4, 3)
    before = module.weight.detach().clone()
    masters = Masters(module, torch.bfloat16)
    assert module.weight.dtype == torch.bfloat16
    x = torch.randn(300, 4, generator=torch.Generator().manual_seed(0)).bfloat16()
    want = torch.zeros(3, 4)
    for row in x:
        module(row[None]).sum().backward()
        masters.collect()
        want += row.float()  # of every output
        assert module.weight.grad is None
    master = masters.of(module.weight)
    torch.testing.assert_close(master, before)  # not rounded
    torch.testing.assert_close(master.grad, want)  # bfloat16 sums would be off by per cents
    with torch.no_grad():
        master -= 0.5
    masters.refresh()
    torch.testing.assert_close(module.weight, (before - 0.5).bfloat16())


def test_small_updates_are_not_lost_in_bfloat16(policy_folder):
    trainer = Trainer(settings_for(policy_folder, dtype="bfloat16", kl_coef=0.0, lr=1e-6))
    before = weights_of(trainer)
    assert trainer.step(make_samples(8))["applied"] == 1
    after = weights_of(trainer)
    moved = torch.cat([(after[n] - before[n]).abs().flatten() for n in before])
    assert 0.5e-6 < moved.median() < 1.5e-6  # far below bfloat16's resolution of these weights


def test_masters_and_fsdp2_train_alike(policy_folder):
    runs = []
    for shard in ("auto", "always"):
        settings = settings_for(policy_folder, dtype="bfloat16", kl_coef=0.1, max_tokens_per_rank=64, shard=shard)
        with RankGroup(settings) as group:
            assert (group.trainer.model.masters is None) == (shard == "always")
            runs.append([group.step(make_samples(12, seed=s)) for s in (1, 2)])
    for plain, sharded in zip(*runs, strict=True):
        assert plain["micro_batches"] > 1
        for name in ("loss", "grad_norm", "entropy", "ratio_mean"):
            assert plain[name] == pytest.approx(sharded[name], rel=2e-2, abs=2e-3), name


@pytest.mark.parametrize("level", ["selective", "attention", "full", True])
def test_recomputed_activations_change_no_gradient(policy_folder, level):
    samples = make_samples(8)
    _, want = gradients(Trainer(settings_for(policy_folder, kl_coef=0.1)), samples)
    _, got = gradients(Trainer(settings_for(policy_folder, kl_coef=0.1, activation_checkpointing=level)), samples)
    for name, grad in want.items():
        torch.testing.assert_close(got[name], grad, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("fields", [{"head": "recompute"}, {"head": "recompute", "head_cache_gib": 0.1}])
@pytest.mark.parametrize("chunk", [7, 2048])
def test_ways_of_the_head_change_no_gradient(policy_folder, fields, chunk):
    samples = make_samples(8)
    a, want = gradients(Trainer(settings_for(policy_folder, kl_coef=0.1, entropy_coef=0.05)), samples)
    b, got = gradients(
        Trainer(settings_for(policy_folder, kl_coef=0.1, entropy_coef=0.05, head_chunk_tokens=chunk, **fields)), samples
    )
    assert b["loss"] == pytest.approx(a["loss"], abs=1e-5)
    for name, grad in want.items():
        torch.testing.assert_close(got[name], grad, atol=1e-5, rtol=1e-4)


def test_filling_changes_nothing_and_is_reported(policy_folder):
    samples = make_samples(8)
    a, want = gradients(Trainer(settings_for(policy_folder)), samples)
    b, got = gradients(Trainer(settings_for(policy_folder, max_tokens_per_rank=2048, pack_multiple=512)), samples)
    tokens = sum(len(s.ids) for s in samples)
    assert a["filling_share"] == 0 and b["filling_share"] == pytest.approx(1 - tokens / (-(-tokens // 512) * 512))
    assert b["loss"] == pytest.approx(a["loss"], abs=1e-5) and b["tokens"] == a["tokens"]
    for name, grad in want.items():
        torch.testing.assert_close(got[name], grad, atol=1e-5, rtol=1e-4)
    row = pack(samples[:1], [1.0], [1.0], multiple=600)
    assert row.tokens == 600 and max(row.lengths[1:]) <= 256 and row.cu_seqlens[-1] == 600
    assert len(row.weights) == int(samples[0].mask.sum())


def test_what_can_not_be_set(policy_folder):
    for fields, word in (
        ({"quantize": "nf4"}, "lora_rank"),
        ({"head": "fused", "head_cache_gib": 1.0}, "head = 'recompute'"),
        ({"pack_multiple": 1000}, "must divide"),
        ({"head_chunk_tokens": 0}, "head_chunk_tokens 0 at least 1"),
        ({"quantize": "nf4", "lora_rank": 4, "cpu_offload": True}, "one rank"),
    ):
        with pytest.raises(ValueError, match=word):
            settings_for(policy_folder, **fields)
    assert msgspec.json.decode(
        msgspec.json.encode(settings_for(policy_folder, activation_checkpointing="selective")), type=type(
            settings_for(policy_folder))).checkpoint_level == "selective"  # fmt: skip


def test_flops_by_hand():
    from transformers import Qwen3Config

    config = Qwen3Config(
        vocab_size=100, hidden_size=8, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=1, head_dim=4,
        intermediate_size=16, tie_word_embeddings=True,
    )  # fmt: skip
    tied = multiplying_parameters(build_lm(config, 0))
    block = 8 * 8 + 2 * 8 * 4 + 8 * 8 + 3 * 8 * 16 + 2 * 8 + 2 * 4  # q, k and v, o, mlp, norms
    assert tied == 3 * block + 8 + 100 * 8
    config.tie_word_embeddings = False
    assert multiplying_parameters(build_lm(config, 0)) == tied
    assert attention_flops(config, [10, 2]) == 6 * 3 * 2 * 4 * (100 + 4)
    assert step_flops(tied, config, [10]) == 60 * tied + 6 * 3 * 2 * 4 * 100
    assert peak_flops("NVIDIA H100 80GB HBM3") == 989e12 and peak_flops("some card") is None


def test_stage_times_add_up_to_the_step(policy_folder):
    numbers = Trainer(settings_for(policy_folder, kl_coef=0.0)).step(make_samples(6))
    parts = [numbers[name] for name in ("plan_s", "pack_s", "forward_backward_s", "optimizer_s")]
    assert all(p > 0 for p in parts) and sum(parts) == pytest.approx(numbers["step_s"])
    assert "mfu" not in numbers and "peak_gib" not in numbers  # there is no card


@pytest.mark.parametrize(
    ("chosen", "device", "width", "wanted"),
    [(None, "cuda", 512, True), (None, "cuda", 511, False), (None, "cpu", 4096, False), (True, "cpu", 32, True),
     (False, "cuda", 4096, False)],
)  # fmt: skip
def test_blocks_are_compiled_by_themselves_from_a_width_on(chosen, device, width, wanted):
    assert TrainerSettings(model="m", compile=chosen).compiled_on(device, width) is wanted
