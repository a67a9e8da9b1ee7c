"""What is no ordinary file of a sensible size is refused at once, wherever a command reads one: a FIFO would be waited
for, /dev/zero never ends, a huge file fills the memory."""

import os
import socket
from pathlib import Path

import pytest

from core.record.record import FILES, Record
from runners import cli

ROOT = Path(__file__).parents[3]
DEMO = str(ROOT / "configs/demo.toml")
TASK = str(ROOT / "core/tasks/starter/level1/relu.py")
SFT = str(ROOT / "configs/demo-sft.toml")


def fifo(path):
    os.mkfifo(path)
    return "a FIFO"


def device(path):
    path.symlink_to("/dev/zero")
    return "a device"


def folder(path):
    path.mkdir()
    return "a folder"


def bound(path):
    with socket.socket(socket.AF_UNIX) as one:
        os.chdir(path.parent)  # the names of sockets are short
        one.bind(path.name)
    return "a socket"


def loop(path):
    path.symlink_to(path)
    return "a link that leads back to itself"


def huge(path):
    with path.open("wb") as file:
        file.truncate(1 << 40)
    return "bytes"


THINGS = [fifo, device, folder, bound, loop, huge]
COMMANDS = {
    "judge --task": lambda odd: ["judge", "--task", odd, "--candidate", TASK],
    "judge --candidate": lambda odd: ["judge", "--task", TASK, "--candidate", odd],
    "up": lambda odd: ["up", odd],
    "up --dry-run": lambda odd: ["up", odd, "--dry-run"],
    "demo": lambda odd: ["demo", "--config", odd],
    "run": lambda odd: ["run", "sampler", "--config", odd],
    "evaluate": lambda odd: ["evaluate", "--config", odd],
    "sft": lambda odd: ["sft", "--config", odd],
    "audit --keep": lambda odd: ["audit", "starter", "--limit", "1", "--keep", odd],
}


@pytest.fixture(autouse=True)
def here(monkeypatch):
    monkeypatch.chdir(ROOT)


def refused(words, capsys, *said, prints=False):
    assert cli.main([str(word) for word in words]) == 2
    out, err = capsys.readouterr()
    assert (prints or out == "") and len(err.splitlines()) == 1, err
    for part in said:
        assert str(part) in err, err


@pytest.mark.parametrize("make", THINGS)
@pytest.mark.parametrize("ending", [".toml", ".json"])
def test_what_a_command_is_given(tmp_path, capsys, monkeypatch, make, ending):
    odd = tmp_path / f"odd{ending}"
    what = make(odd)
    for command in COMMANDS.values():
        refused(command(odd), capsys, odd, what)


@pytest.mark.parametrize("make", THINGS)
def test_a_recipe_that_is_extended(tmp_path, capsys, make):
    odd = tmp_path / "odd.toml"
    what = make(odd)
    own = tmp_path / "own.toml"
    own.write_text('extends = "odd.toml"\n')
    refused(["up", own, "--dry-run"], capsys, odd, what)


@pytest.mark.parametrize("make", [make for make in THINGS if make is not folder])
@pytest.mark.parametrize("source", ["odd.jsonl", "tasks/level1/odd.py"])
def test_tasks(tmp_path, capsys, make, source):
    odd = tmp_path / source
    odd.parent.mkdir(parents=True, exist_ok=True)
    what = make(odd)
    path = odd if odd.suffix == ".jsonl" else odd.parent.parent
    for words in (["tasks", "list", path], ["audit", path]):
        refused(words, capsys, odd, what, prints=True)


@pytest.mark.parametrize("make", [make for make in THINGS if make is not huge])
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_policy(tmp_path, capsys, make, name):
    model = tmp_path / "model"
    model.mkdir()
    for file in (ROOT / "configs/policies/demo").iterdir():
        if file.name != name:
            (model / file.name).symlink_to(file)
    what = make(model / name)
    refused(["evaluate", "--config", DEMO, "--model", model], capsys, model / name, what)
    refused(["up", DEMO, "--dry-run", f"model.path={model}"], capsys, model / name, what)


@pytest.mark.parametrize("make", [fifo, device, folder, bound])
@pytest.mark.parametrize("name", [*FILES.values(), "config.json", "heldout-before.json"])
def test_a_run(tmp_path, capsys, make, name):
    run = tmp_path / "run"
    with Record(run):
        pass
    inside = run / name if name not in FILES.values() else run / "record" / name
    what = make(inside)
    if name.startswith("heldout"):  # a part that the report can do without
        assert cli.main(["report", str(run)]) == 0
        assert f"{name}: {what}, wanted a file: its figures and kernels are left out\n" in capsys.readouterr().err
    else:
        refused(["report", run], capsys, inside, what)
    if name in ("facts.jsonl", "steps.jsonl"):
        refused(["tail", run, "--no-follow"], capsys, inside, what)
    if name not in ("metrics.jsonl", "config.json", "heldout-before.json"):
        refused(["ledger", run], capsys, inside, what)
    if not name.startswith(("heldout", "episodes")):
        refused(["top", run, "--once"], capsys, inside, what)


@pytest.mark.parametrize("make", THINGS)
@pytest.mark.parametrize("key", ["data.path", "data.feedback"])
def test_data_of_the_supervised_phase(tmp_path, capsys, make, key):
    odd = tmp_path / "odd"
    what = make(odd)
    words = ["sft", "--config", SFT, f"out={tmp_path}/out", f"{key}={odd}", "steps=1", "data.count=4"]
    said = [key, odd] if key == "data.path" and make is not huge else [key, odd, what]
    refused([*words, "data.kind=jsonl"] if key == "data.path" else words, capsys, *said)
