"""`sft` with what no policy can be made of: one line and exit code 2 before any work, and no folder is left."""

import json
import shutil
from pathlib import Path

import pytest

from runners import cli

ROOT = Path(__file__).parents[3]
WORDS = ["sft", "--config", str(ROOT / "configs/demo-sft.toml"), "device=cpu", "data.count=8", "steps=1"]


def refused(tmp_path, capsys, words, *said):
    out = tmp_path / "policy"
    assert cli.main([*WORDS, f"out={out}", "rows_per_step=2", *words]) == 2
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("kernelmill")]
    assert len(told) == 1
    for part in said:
        assert part in told[0]
    assert not out.exists()


@pytest.mark.parametrize(
    "name", ["vocab", "hidden", "layers", "heads", "kv_heads", "head_dim", "intermediate", "context_tokens"]
)
@pytest.mark.parametrize("value", [0, -2])
def test_sizes_from_nothing_down(tmp_path, capsys, name, value):
    refused(tmp_path, capsys, [f"architecture.{name}={value}"], f"architecture.{name}: ", f"got {value}")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["architecture.kv_heads=3"], "kv_heads = 3 must divide heads = 4"),
        (["architecture.heads=2", "architecture.kv_heads=4"], "kv_heads = 4 must divide heads = 2"),
        (["architecture.head_dim=47"], "architecture.head_dim: "),
        (["architecture.vocab=259"], "architecture.vocab: "),
        (["architecture.vocab=100000000000"], "architecture.vocab: "),
        (["architecture.hidden=1000000000"], "GiB: make hidden"),
        (["architecture.context_tokens=5"], "raise architecture.context_tokens"),
        (["lr=0"], "lr: "),
        (["lr=-0.1"], "lr: "),
        (["lr=nan"], "lr: "),
        (["lr=inf"], "lr: "),
        (["lr=7"], "lr: "),
        (["warmup_steps=-1"], "warmup_steps: "),
        (["weight_decay=-1"], "weight_decay: "),
        (["grad_clip=0"], "grad_clip: "),
        (["seed=-1"], "seed: "),
        (["data.seed=-1"], "data.seed: "),
        ([f"seed={10**30}"], "seed: "),
        (["data.kind=jsonl", "data.path=README.md"], "data.path: README.md:1: "),
        (["data.feedback=README.md"], "data.feedback = 'README.md': "),
        (["data.feedback=nowhere"], "data.feedback = 'nowhere': No such file"),
        (["model=nowhere"], "no model folder 'nowhere'"),
        (["model=docs"], "model = 'docs' has no config.json and no tokenizer.json"),
    ],
)
def test_values_that_do_not_go(tmp_path, capsys, monkeypatch, words, said):
    monkeypatch.chdir(ROOT)
    refused(tmp_path, capsys, words, said)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hidden_size": 193}, "can't be loaded"),
        ({"num_attention_heads": 0}, "can't be"),
        ({"num_key_value_heads": 3}, "can't be"),
        ({"num_key_value_heads": 0}, "can't be"),
        ({"head_dim": 47}, "can't be"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_hidden_layers": -1}, "num_hidden_layers"),
        ({"hidden_size": "wide"}, "hidden_size"),
        ({"model_type": "qwen99"}, "qwen99"),
        ({"model_type": "bert"}, "BertLMHeadModel"),
        ({"model_type": 3}, "model_type is 3"),
    ],
)
def test_a_policy_to_continue_from_whose_config_is_impossible(tmp_path, capsys, changes, said):
    model = tmp_path / "model"
    shutil.copytree(ROOT / "configs/policies/demo", model)
    settings = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**settings, **changes}))
    refused(tmp_path, capsys, [f"model={model}"], str(model), said)


def test_a_loss_that_is_no_number_is_told(tmp_path, capsys):
    pytest.importorskip("torch")
    words = ["lr=1", "warmup_steps=0", "steps=20", "weight_decay=1e30", "architecture.layers=1"]
    refused(tmp_path, capsys, words, "loss is ", "lower lr")
