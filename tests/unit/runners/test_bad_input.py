"""What a person types wrong is answered in one clear line and exit code 2, before anything is started."""

import json
import shutil
import socket
import subprocess
import sys

import pytest

from runners.preflight import has_gpu
from tests.unit.runners.typed import ROOT, kernelmill, refused

GOOD = 'extends = "{root}/configs/demo.toml"\n[run]\nname = "bad-input"\nfolder = "{folder}/runs"\n'


def recipe(folder, text=""):
    path = folder / "recipe.toml"
    path.write_text(GOOD.format(root=ROOT, folder=folder) + text)
    return path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["up", "configs/demo.toml", "--dry-run", "run.stepz=1"], "did you mean run.steps?"),
        (["run", "learnr", "--config", "x"], "did you mean learner?"),
        (["demo", "--steps", "0"], "--steps 0"),
        (["gateway", "--verdict-timeout", "0"], "--verdict-timeout 0"),
        (["evaluate", "--config", "configs/demo.toml", "--tasks", "0"], "--tasks 0"),
        (["sft", "--config", "configs/demo-sft.toml", "steps=2"], "is there already"),
        (["tasks", "list", "strater"], "got 'strater'"),
        (["audit", "starter", "--limit", "0"], "--limit 0"),
        (["judge", "--task", "README.md", "--candidate", "README.md", "--draws", "0"], "--draws 0: at least 2"),
        (["report", "nowhere"], "no run folder nowhere"),
        (["top", "nowhere", "--once"], "no run folder nowhere"),
    ],
)
def test_the_way_of_a_fresh_process(words, said):
    """All others are forked from one that has imported what the command imports."""
    command = [sys.executable, "-m", "runners.cli", *words]
    refused(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60), said)


def test_an_unknown_key(tmp_path):
    done = kernelmill("up", recipe(tmp_path), "learner.grad_clop=1")
    refused(done, "learner.grad_clop", "did you mean learner.grad_clip?")
    assert not (tmp_path / "runs").exists()


def test_a_missing_model_folder(tmp_path):
    done = kernelmill("up", recipe(tmp_path), f"model.path={tmp_path}/nowhere")
    refused(done, "model.path", f"{tmp_path}/nowhere", "no such folder")
    assert not (tmp_path / "runs").exists()


def test_a_model_folder_without_weights(tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "tokenizer.json").write_text("{}")
    refused(kernelmill("up", recipe(tmp_path), f"model.path={model}"), "no .safetensors weights")


def test_a_busy_port(tmp_path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        refused(kernelmill("up", recipe(tmp_path), f"bus.port={port}"), f"bus.port = {port}", "something else listens")
    assert not (tmp_path / "runs").exists()


def test_a_task_without_a_model(tmp_path):
    tasks = tmp_path / "tasks" / "level1"
    tasks.mkdir(parents=True)
    (tasks / "1_nothing.py").write_text("def get_inputs():\n    return []\n\ndef get_init_inputs():\n    return []\n")
    done = kernelmill("up", recipe(tmp_path), f'tasks.train=[{{kind="folder", path="{tmp_path}/tasks"}}]')
    refused(done, "1_nothing.py", "Model")
    assert not (tmp_path / "runs").exists()


def test_rows_that_are_no_tasks_stop_a_run_or_are_left_out(tmp_path):
    good = "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        return torch.relu(x)\n"
    good += "def get_inputs():\n    return [torch.randn(8, 8)]\ndef get_init_inputs():\n    return []\n"
    rows = [json.dumps({"code": good, "level": 1, "problem_id": n, "name": f"t{n}"}) for n in range(2)]
    data = tmp_path / "tasks.jsonl"
    data.write_text("\n".join([rows[0], "no JSON", *['{"level": 1}'] * 8, rows[1]]))
    source = f'tasks.train=[{{kind="jsonl", path="{data}"}}]'
    refused(kernelmill("up", recipe(tmp_path), source, "--dry-run"), "tasks.jsonl:2", "(and 8 more")
    done = kernelmill("up", recipe(tmp_path), source, "tasks.refused=skip", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "tasks.train: 9 files or rows are no tasks" in done.stderr and "tasks.jsonl:2" in done.stderr
    assert "and 4 more" in done.stderr and len(done.stderr.splitlines()) == 1
    data.write_text("no JSON\nno JSON\n")
    refused(kernelmill("up", recipe(tmp_path), source, "tasks.refused=skip", "--dry-run"), "tasks.jsonl:1")


def test_a_split_that_leaves_no_task(tmp_path):
    done = kernelmill("up", recipe(tmp_path), 'tasks.train=[{kind="starter", levels=[4]}]')
    refused(done, "starter", "none of its", "has level 4")


def test_an_engine_that_is_not_installed(tmp_path):
    done = kernelmill("up", recipe(tmp_path), "rollout.engine=vllm", absent=["vllm"])
    refused(done, "vllm", "make extra-vllm")


@pytest.mark.parametrize(
    ("override", "module", "said"),
    [
        ("learner.lora_rank=4", "peft", "make extra-lora"),
        ("learner.quantize=nf4", "bitsandbytes", "make extra-qlora"),
        ("learner.device=cuda", "", "this machine has no GPU"),
    ],
)
def test_a_learner_that_this_machine_can_not_have(tmp_path, override, module, said):
    """Else it dies of it at each of six starts."""
    if not module and has_gpu():
        pytest.skip(f"this machine has it: {override}")
    rank = [] if "lora_rank" in override else ["learner.lora_rank=0" if "cuda" in override else "learner.lora_rank=4"]
    done = kernelmill("up", recipe(tmp_path), override, *rank, absent=[module] if module else [])
    refused(done, override.partition("=")[0], said)
    assert not (tmp_path / "runs").exists()


def test_a_missing_config(tmp_path):
    refused(kernelmill("up", tmp_path / "gone.toml"), "no such config")


def test_an_actor_without_a_broker(tmp_path):
    refused(kernelmill("run", "sampler", "--config", recipe(tmp_path)), "no broker", "kernelmill up")


def test_an_actor_whose_broker_does_not_answer(tmp_path):
    done = kernelmill("run", "sampler", "--config", recipe(tmp_path), "bus.url=nats://127.0.0.1:9", "bus.connect_s=1")
    refused(done, "nats://127.0.0.1:9")


def test_overrides_may_stand_anywhere_but_must_be_overrides(tmp_path):
    done = kernelmill("up", recipe(tmp_path), "--dry-run", "run.steps=7")
    assert done.returncode == 0 and '"steps": 7' in done.stdout
    assert not (tmp_path / "runs").exists()
    refused_usage = kernelmill("up", recipe(tmp_path), "--no-such-option")
    assert refused_usage.returncode == 2 and "--no-such-option" in refused_usage.stderr


def test_a_run_folder_that_holds_another_run(tmp_path):
    path = recipe(tmp_path)
    folder = tmp_path / "runs" / "bad-input"
    folder.mkdir(parents=True)
    resolved = kernelmill("up", path, "--dry-run", "episodes.gamma=0.9")
    (folder / "config.json").write_text(resolved.stdout)
    refused(kernelmill("up", path), "episodes.gamma", "0.9", "0.4")


def broken_model(folder, name, content):
    model = folder / "model"
    shutil.copytree(ROOT / "configs" / "policies" / "demo", model)
    (model / name).write_bytes(content)
    return model


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", b"{"),
        ("config.json", b'{"model_type": 3}'),
        ("tokenizer.json", b"{}"),
        ("model.safetensors", b"short"),
        ("model.safetensors", b""),
    ],
)
def test_a_model_folder_whose_files_are_broken(tmp_path, name, content):
    model = broken_model(tmp_path, name, content)
    refused(kernelmill("up", recipe(tmp_path), "--dry-run", f"model.path={model}"), name, "can't be used")


def multimodal(values):
    """The same model as a part of a multimodal checkpoint: its fields stand in text_config alone."""
    return {"model_type": "gemma3", "vision_config": {}, "text_config": values}


def multimodal_with_both(values):
    return {**multimodal(values), "max_position_embeddings": 9}


@pytest.mark.parametrize("shape", [dict, multimodal, multimodal_with_both])
@pytest.mark.parametrize("limit", [320, 64])
def test_a_model_whose_context_an_answer_fills(tmp_path, limit, shape):
    values = {**json.loads((ROOT / "configs/policies/demo/config.json").read_text()), "max_position_embeddings": limit}
    model = broken_model(tmp_path, "config.json", json.dumps(shape(values)).encode())
    done = kernelmill("up", recipe(tmp_path), "--dry-run", f"model.path={model}")
    refused(done, f"max_position_embeddings = {limit}", "set rollout.max_new_tokens = 320 below it")
    done = kernelmill("up", recipe(tmp_path), "--dry-run", f"model.path={model}", f"rollout.max_new_tokens={limit - 1}")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("command", "words"),
    [("judge", ["--task", "README.md", "--candidate", "README.md"]), ("gateway", ["--port", "0"])],
)
@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--draws", "1000000", "--draws 1000000: at most 64"),
        ("--draws", "0", "--draws 0: at least 2"),
        ("--wall", "0.1", "--wall 0.1: wanted seconds, 1 to"),
        ("--wall", "nan", "--wall nan: wanted seconds, 1 to"),
        ("--gpu-wall", "70", "--gpu-wall is of the GPU tier: add --gpu, or leave it out"),
        ("--gpu-profile", "small", "--gpu-profile is of the GPU tier"),
        ("--target", "cuda:7", "--target 'cuda:7': wanted cuda:"),
    ],
)
def test_what_no_judge_takes_is_told_by_the_option_that_was_typed(command, words, option, value, said):
    refused(kernelmill(command, *words, option, value), f"kernelmill {command}: {said}")


@pytest.mark.parametrize(
    ("command", "words"),
    [("judge", ["--task", "README.md", "--candidate", "README.md"]), ("gateway", ["--port", "0"])],
)
def test_a_judge_on_a_gpu_that_is_not_there(command, words):
    if has_gpu():
        pytest.skip("this machine has one")
    done = kernelmill(command, *words, "--gpu")
    refused(done, f"kernelmill {command}: --gpu: torch sees no GPU here", "leave --gpu out")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["demo", "--steps", "0"], "--steps 0"),
        (["audit", "starter", "--limit", "0"], "--limit 0: wanted at least 1"),
        (["audit", "starter", "--limit", "-2"], "--limit -2: wanted at least 1"),
        (["audit", "starter", "--wall", "nan"], "--wall nan"),
        (["gateway", "--verdict-timeout", "0"], "--verdict-timeout 0: wanted seconds above 0"),
        (["gateway", "--verdict-timeout", "nan"], "--verdict-timeout nan: wanted seconds above 0"),
        (["demo", "--json", "/no/such/folder/x.json"], "--json"),
        (["evaluate", "--config", "configs/demo.toml", "--out", "/no/such/folder/x.json"], "--out"),
        (["evaluate", "--config", "configs/demo.toml", "--out", "/proc/x.json"], "--out /proc/x.json: nothing can be"),
        (["demo", "--json", "/proc/x.json"], "--json /proc/x.json: nothing can be written in /proc"),
        (["evaluate", "--config", "configs/demo.toml", "--tasks", "0"], "--tasks 0: wanted at least 1"),
        (["up", "configs/demo.toml", "--dry-run", "bus.url=htp://x"], "'htp://x' is not the address"),
        (["up", "configs/demo.toml", "--dry-run", f"run.steps={10**20}"], "run.steps"),
        (["demo", "--folder", "README.md"], "run folder"),
        (["up", "configs/demo.toml", "run.folder=README.md"], "run folder"),
        (["sft", "--config", "configs/demo-sft.toml", "steps=2"], "is there already"),
        (["sft", "--config", "configs/demo-sft.toml", "out=/proc/x"], "nothing can be written in /proc"),
    ],
)
def test_what_can_not_be_written_is_refused_before_the_work(words, said):
    refused(kernelmill(*words), said)


def test_tasks_that_are_no_text(tmp_path):
    (tmp_path / "tasks.jsonl").write_bytes(b"\xff\xfe\n")
    (tmp_path / "level1").mkdir()
    (tmp_path / "level1" / "1_bin.py").write_bytes(b"\xff\xfe")
    for source in (tmp_path / "tasks.jsonl", tmp_path):
        done = kernelmill("tasks", "list", source)
        assert done.returncode == 2 and len(done.stderr.strip().splitlines()) == 1, done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], ["kernelmill: ", "COMMAND"]),
        (["jugde"], ["'jugde'", "did you mean judge?"]),
        (["judge", "--task", "x"], ["kernelmill judge: ", "--candidate", "`kernelmill judge --help`"]),
        (["judge", "--draws", "abc"], ["--draws", "'abc'"]),
        (["judge", "--task", "x", "--candidate", "x", "--bakcend", "cuda"], ["kernelmill judge: ", "--bakcend cuda"]),
        (["judge", "--task", "x", "--candidate", "x", "--gpu", "h100"], ["h100; --gpu takes no value"]),
        (["judge", "--task", "x", "--candidate", "x", "--gpu=h100"], ["--gpu takes no value, got 'h100'"]),
        (["judge", "--backend", "cudda"], ["'cudda'", "did you mean cuda?"]),
        (["tasks", "lsit", "starter"], ["'lsit'", "did you mean list?"]),
        (["tasks", "list", "starter", "--level", "x"], ["--level", "'x'"]),
        (["run", "learnr", "--config", "x"], ["'learnr'", "did you mean learner?"]),
        (["up", "configs/demo.toml", "--dry-rum"], ["kernelmill up: ", "--dry-rum"]),
        (["up"], ["kernelmill up: ", "required: config ("]),
        (["run"], ["kernelmill run: ", "required: actor, --config ("]),
        (["evaluate"], ["kernelmill evaluate: ", "required: --config ("]),
    ],
)
def test_words_that_no_command_knows(words, said):
    refused(kernelmill(*words), *said)


def test_cards_that_this_machine_lacks(tmp_path):
    done = kernelmill("up", recipe(tmp_path), "rollout.cards=[99]")
    refused(done, "rollout.cards = [99] names card 99, but this machine shows ")
    assert not (tmp_path / "runs").exists()


def test_an_outage_is_told_in_a_line_and_is_no_bug(monkeypatch, capsys):
    """Of an actor that leaves while its broker is gone. Code 2 would end a supervised run."""
    from bus.broker import NoConnection
    from runners import cli, ledger

    def run(_):
        raise ExceptionGroup("all", [NoConnection("no connection to nats://x:1: storing 3 bytes")])

    monkeypatch.setattr(ledger, "run", run)
    assert cli.main(["ledger", "x"]) == 1
    assert capsys.readouterr().err == (
        "kernelmill ledger: no connection to nats://x:1: storing 3 bytes: is the broker gone?\n"
    )
