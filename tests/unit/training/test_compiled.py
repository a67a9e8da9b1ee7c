"""A compiler that is wrong: steps are made again with blocks as they are written, and only where that is the cure."""

import msgspec
import pytest
import torch
from functorch.compile import make_boxed_func
from structlog.testing import capture_logs
from torch._dynamo.backends.common import aot_autograd

from core.training import compiled
from core.training.trainer import Trainer
from tests.unit.training.conftest import make_samples
from tests.unit.training.test_trainer import settings_for


def spoiling(factor):
    """A backend whose backward graphs answer with their first gradient of floating type times `factor`."""

    def as_traced(graph, inputs):
        return make_boxed_func(graph.forward)

    def spoiled(graph, inputs):
        def run(*args):
            out, done = [], False
            for x in graph(*args):
                if isinstance(x, torch.Tensor) and x.is_floating_point() and not done:
                    x, done = x * factor, True
                out.append(x)
            return out

        return make_boxed_func(run)

    return aot_autograd(fw_compiler=as_traced, bw_compiler=spoiled)


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def trainer_with(backend, folder, monkeypatch, **fields):
    monkeypatch.setattr(compiled, "BACKEND", backend)
    return Trainer(settings_for(folder, compile=True, **fields))


WAYS = [
    {"kl_coef": 0.1},
    {"kl_coef": 0.0, "dtype": "bfloat16"},
    {"kl_coef": 0.0, "activation_checkpointing": "selective"},
    {"kl_coef": 0.1, "lora_rank": 2, "lora_dropout": 0.1},
    {"kl_coef": 0.0, "advantage": "gae", "baseline": "none"},
    {
        "kl_coef": 0.1, "kl_in": "reward", "kl_estimator": "k1", "advantage": "reinforce_plus_plus",
        "baseline": "none", "max_tokens_per_rank": 96,
    },
]  # fmt: skip


@pytest.mark.parametrize("fields", WAYS)
def test_not_finite_only_when_compiled_is_made_again(policy_folder, fields, monkeypatch):
    if fields.get("lora_rank"):
        pytest.importorskip("peft")
    plain = Trainer(settings_for(policy_folder, compile=False, **fields))
    trainer = trainer_with(spoiling(float("nan")), policy_folder, monkeypatch, **fields)
    samples = make_samples(8)
    for step in range(2):
        wanted = plain.step(samples)
        with capture_logs() as logs:
            numbers = trainer.step(samples)
        assert numbers["applied"] == 1.0 and numbers["compiled"] == 0.0
        assert numbers["compile_retry"] == float(step == 0) and "compile_retry" not in wanted
        assert len([x for x in logs if "not compiled from now on" in x["event"]]) == (step == 0)
        for name in ("loss", "grad_norm", "kl", "entropy"):  # the seed of dropout too
            assert numbers[name] == wanted[name], name
    for (name, a), (_, b) in zip(plain.model.named_masters(), trainer.model.named_masters(), strict=True):
        assert torch.equal(a, b), name


def test_blocks_stay_compiled_when_they_are_not_to_blame(policy_folder, monkeypatch):
    trainer = trainer_with("aot_eager", policy_folder, monkeypatch, kl_coef=0.0)
    good = trainer.step(make_samples(8))
    assert good["applied"] == 1.0 and good["compiled"] == 1.0 and good["compile_retry"] == 0.0
    kept = {name: p.detach().clone() for name, p in trainer.model.named_masters()}
    with torch.no_grad():
        trainer.model.lm.model.norm.weight[0] = float("nan")
    with capture_logs() as logs:
        bad = trainer.step(make_samples(8))
    assert bad["applied"] == 0.0 and bad["compile_retry"] == 1.0 and bad["compiled"] == 1.0 and not logs
    assert any(name.startswith("refused_step/non_finite") for name in bad)
    with torch.no_grad():
        trainer.model.lm.model.norm.weight[0] = kept["model.norm.weight"][0]
    again = trainer.step(make_samples(8))
    assert again["applied"] == 1.0 and again["compile_retry"] == 0.0 and again["version"] == 2.0


@pytest.mark.filterwarnings("ignore:dynamo_pgo force disabled")  # as it should be, here
def test_options_reach_the_backward_graph(monkeypatch):
    """They are told to the compiler itself, since the backward graph is compiled when `prepare` is long over."""
    from torch._inductor import compile_fx, config

    if "triton.mix_order_reduction" not in config.get_config_copy():
        pytest.skip("this torch has no such fusion")
    seen = []
    inner = compile_fx.compile_fx_inner

    def look(graph, inputs, **kwargs):
        seen.append((bool(kwargs.get("is_backward")), config.triton.mix_order_reduction, config.comprehensive_padding))
        return inner(graph, inputs, **kwargs)

    monkeypatch.setattr(config, "force_disable_caches", True)  # a graph of an earlier run is not compiled
    monkeypatch.setattr(config.triton, "mix_order_reduction", True)
    monkeypatch.setattr(config, "comprehensive_padding", True)

    def backend(graph, inputs):
        return compile_fx.compile_fx(graph, inputs, inner_compile=look, config_patches=compiled.options())

    call = torch.compile(lambda x: (x * x).sin(), backend=backend)  # torch's own modules are not looked into
    call(torch.ones(2, 4, requires_grad=True)).sum().backward()
    assert seen == [(False, False, False), (True, False, False)]
    assert config.triton.mix_order_reduction and config.comprehensive_padding


@pytest.mark.filterwarnings("ignore:dynamo_pgo force disabled")
def test_a_critic_beyond_all_numbers_is_no_fault_of_the_blocks(policy_folder, monkeypatch):
    trainer = trainer_with("aot_eager", policy_folder, monkeypatch, kl_coef=0.0, advantage="gae", baseline="none",
                           scale="batch")  # fmt: skip
    samples = make_samples(8)
    numbers = trainer.step([msgspec.structs.replace(samples[0], ret=1e30), *samples[1:]])
    assert numbers["refused_step/non_finite_values"] == 1.0 and numbers["applied"] == 0.0
    assert numbers["compile_retry"] == 1.0 and numbers["compiled"] == 1.0
