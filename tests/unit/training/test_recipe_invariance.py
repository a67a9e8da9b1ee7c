"""What must not change the step of any recipe: cuts into micro-batches, order, filling, the number of ranks."""

import importlib.util
import json
import os
import subprocess
import sys

import msgspec
import numpy as np
import pytest
import torch

from core.training.trainer import Trainer
from tests.unit.training import dense
from tests.unit.training.rank_worker import step
from tests.unit.training.recipes import batch, settings_of, shift
from tests.unit.training.test_adapters import needs_peft

SAME = ("loss", "policy_loss", "kl", "entropy", "clip_share", "masked_share", "tis_mean", "ess", "grad_norm", "samples",
        "tokens", "value_loss", "value_grad_norm", "lag/1/ratio_mean", "lag/2/kl_k3")  # fmt: skip
ADAPTERS = "GRPO, adapters alone"
NAMES = [*dense.RECIPES, pytest.param(ADAPTERS, marks=needs_peft)]


def run(settings, samples):
    trainer = Trainer(settings)
    shift(trainer, norm=1.0)
    return step(trainer, samples)


def same(one, other):
    (a, grads), (b, others) = one, other
    for name in SAME:
        assert (name in a) == (name in b)
        if name in a:
            assert b[name] == pytest.approx(a[name], abs=1e-5, rel=1e-4), name
    for name, grad in grads.items():
        torch.testing.assert_close(others[name], grad, atol=1e-5, rtol=1e-4)


@pytest.fixture(scope="module")
def whole(policy_folder, tmp_path_factory):
    """{name: (settings, a step in one row)}"""
    out = {}
    fields = {name: {} for name in dense.RECIPES}
    if importlib.util.find_spec("peft"):
        fields[ADAPTERS] = {"lora_rank": 4, "lora_alpha": 8.0, "kl_coef": 0.1}
    for name, more in fields.items():
        settings = settings_of(name.partition(",")[0], policy_folder, tmp_path_factory.mktemp("whole"), **more)
        out[name] = (settings, run(settings, batch(settings.credit)))
    return out


@pytest.mark.parametrize("name", NAMES)
def test_cuts_order_and_filling_change_nothing(whole, name):
    settings, want = whole[name]
    samples = batch(settings.credit)
    longest = max(len(sample.ids) for sample in samples)
    cut = run(msgspec.structs.replace(settings, max_tokens_per_rank=longest // 2), samples)
    assert want[0]["micro_batches"] == 1 and cut[0]["micro_batches"] > 4 and want[0]["grad_norm"] > 1e-3
    same(want, cut)
    shuffled = [samples[i] for i in np.random.default_rng(1).permutation(len(samples))]
    filled = run(msgspec.structs.replace(settings, max_tokens_per_rank=32, pack_multiple=32), shuffled)
    assert filled[0]["filling_share"] > 0
    same(want, filled)


@pytest.fixture(scope="module")
def two_ranks(whole, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    jobs = [
        (name, msgspec.to_builtins(msgspec.structs.replace(settings, ranks=2, max_tokens_per_rank=32)))
        for name, (settings, _) in whole.items()
    ]
    (folder / "jobs.json").write_text(json.dumps(jobs))
    command = [sys.executable, "-m", "tests.unit.training.rank_worker"]
    ranks = [
        subprocess.Popen([*command, str(rank), str(folder)], env={**os.environ, "OMP_NUM_THREADS": "1"})
        for rank in range(2)
    ]
    try:
        assert [process.wait(240) for process in ranks] == [0, 0]
    finally:
        for process in ranks:
            process.kill()
    return torch.load(folder / "answers.pt", weights_only=False)


@pytest.mark.parametrize("name", NAMES)
def test_two_ranks_equal_one(whole, two_ranks, name):
    assert two_ranks[name][0]["micro_batches"] >= 1
    same(whole[name][1], two_ranks[name])
