"""`kernelmill import-config` as a person types it: what it writes, what it refuses, and that nothing is run."""

import pytest

from configs.load import load
from runners import cli
from tests.unit.configs.imports import slime, verl
from tests.unit.runners.test_plain_files import THINGS, refused
from tests.unit.runners.typed import kernelmill


def test_the_command_is_there(tmp_path):
    script = tmp_path / "run.sh"
    script.write_text(slime())
    done = kernelmill("import-config", script)
    assert (done.returncode, done.stderr) == (0, "") and "[sampler]" in done.stdout


@pytest.mark.parametrize("text", [slime(num_layers=36), verl({"trainer.total_epochs": "3"})])
def test_a_recipe_is_written_and_what_is_left_over_told(tmp_path, capsys, text):
    script, out = tmp_path / "run-it.sh", tmp_path / "mine.toml"
    script.write_text(text)
    assert cli.main(["import-config", str(script), "--out", str(out)]) == 0
    said, warned = capsys.readouterr()
    assert load(out).run.name == "run-it"
    assert said.startswith(f"{out}: ")
    (told,) = warned.splitlines()
    assert told.startswith("left over: ") and f"# {told.removeprefix('left over: ')}" in out.read_text()
    assert cli.main(["import-config", str(script)]) == 0
    assert capsys.readouterr() == (out.read_text(), warned)


def test_nothing_of_the_script_is_run(tmp_path):
    script = tmp_path / "run.sh"
    script.write_text(f"touch {tmp_path}/ran\nX=$(touch {tmp_path}/ran)\n: `touch {tmp_path}/ran`\n{slime(lr='$X')}")
    assert cli.main(["import-config", str(script)]) == 0
    assert not (tmp_path / "ran").exists()


def test_a_file_that_is_there_stays(tmp_path, capsys):
    script, out = tmp_path / "run.sh", tmp_path / "mine.toml"
    script.write_text(slime())
    out.write_text("mine")
    refused(["import-config", script, "--out", out], capsys, str(out), "is there already")
    assert out.read_text() == "mine"


@pytest.mark.parametrize(("out", "said"), [("mine.json", "ends in .toml"), ("no/where.toml", "a folder that exists")])
def test_where_no_recipe_can_be_written(tmp_path, capsys, out, said):
    script = tmp_path / "run.sh"
    script.write_text(slime())
    refused(["import-config", script, "--out", tmp_path / out], capsys, said)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("x.sh", b"", "no option of slime, TritonForge or verl found"),
        ("x.sh", b"echo hello\nls -l --color\n", "no option of slime, TritonForge or verl found"),
        ("x.sh", b"python3 other.py --lr 1e-6 --epochs 3\n", "no option of slime, TritonForge or verl found"),
        ("x.sh", b"\x7fELF\xff\xfe", "not UTF-8 text"),
        ("x.sh", b"ab\0cd", "a binary file"),
        ("x.sh", b"python3 train.py --lr '1e-6\n", "line 1: a ' is missing"),
        ("x.sh", slime(loss_type="sft_loss").encode(), "`kernelmill sft`"),
        ("x.sh", verl(program="verl.trainer.sft_trainer").encode(), "`kernelmill sft`"),
        ("x.sh", verl(program="verl.trainer.main_generation").encode(), "trains nothing"),
        ("x.py", b"import slime\n", "a Python program"),
    ],
)
def test_what_is_no_launch_script_is_refused_in_one_line(tmp_path, capsys, name, content, said):
    script = tmp_path / name
    script.write_bytes(content)
    refused(["import-config", script], capsys, str(script), said)


def test_a_script_that_is_not_there(tmp_path, capsys):
    refused(["import-config", tmp_path / "x.sh"], capsys, "no such file")


@pytest.mark.parametrize("make", THINGS)
def test_what_is_no_ordinary_file_is_refused(tmp_path, capsys, make, monkeypatch):
    monkeypatch.chdir(tmp_path)
    odd = tmp_path / "odd.sh"
    what = make(odd)
    refused(["import-config", odd], capsys, str(odd), what)
