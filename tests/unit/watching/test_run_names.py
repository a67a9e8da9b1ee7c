"""Every command that reads a run takes its folder, or its name where that folder is in ./runs."""

import time
from pathlib import Path

import pytest
import scene

from runners.cli import main

COMMANDS = [("ledger",), ("report",), ("tail", "--no-follow"), ("top", "--once"), ("export",)]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    scene.write_run(folder / "runs" / "demo", steps=2, held_out_tasks=1)
    (folder / "runs" / "empty").mkdir()
    (folder / "elsewhere").mkdir()
    return folder


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_a_run_may_be_named(home, words, monkeypatch, capsys):
    monkeypatch.chdir(home)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)  # both are asked at the same moment
    named, foldered = [], []
    for run, into in (("demo", named), ("runs/demo", foldered)):
        into.append(main([words[0], run, *words[1:]]))
        shown = capsys.readouterr()
        into += [shown.out, shown.err]
    assert named == foldered
    assert "no such run folder" not in named[2] and (named[0] == 2) == (words == ("export",)), "it has no checkpoint"


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
@pytest.mark.parametrize(
    ("run", "said"),
    [
        ("nowhere", "there is no run folder nowhere and no runs/nowhere"),
        ("deep/nowhere", "deep/nowhere: there is no such run folder"),
        ("empty", "runs/empty holds no record/"),
        ("elsewhere", "elsewhere holds no record/"),
        ("runs", "runs in it: demo"),
    ],
)
def test_both_places_are_told_when_the_run_is_in_neither(home, words, run, said, monkeypatch, capsys):
    monkeypatch.chdir(home)
    assert main([words[0], run, *words[1:]]) == 2
    told = capsys.readouterr().err
    assert said in told and told.count("\n") == 1


@pytest.mark.parametrize("lines", ["-3", "1.5", "x", ""])
def test_a_number_of_lines_counts_from_0(home, lines, capsys):
    with pytest.raises(SystemExit) as left:
        main(["tail", str(home / "runs" / "demo"), "-n", lines, "--no-follow"])
    told = capsys.readouterr()
    assert (left.value.code, told.out) == (2, "")
    assert f"got {lines!r}, wanted a whole number from 0 on" in told.err and told.err.count("\n") == 1
