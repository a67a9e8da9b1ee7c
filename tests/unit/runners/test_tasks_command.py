import argparse

import pytest

from runners import tasks


def run(*words: str) -> int:
    parser = argparse.ArgumentParser(prog="kernelmill")
    tasks.add_parser(parser.add_subparsers())
    args = parser.parse_args(["tasks", *words])
    return args.run(args)


def test_lists_the_starter_set(capsys):
    assert run("list", "starter", "--split", "heldout") == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0].split() == ["id", "level", "side", "structure"]
    assert all(line.split()[2] == "heldout" for line in lines[1:-1])
    assert lines[-1].endswith(f"train 0, heldout {len(lines) - 2}")


def test_lists_composed_tasks_of_a_seed(capsys):
    assert run("list", "composed:5:3") == 0
    first = capsys.readouterr().out
    assert run("list", "composed:5:3") == 0
    assert capsys.readouterr().out == first
    assert first.count("composed/c") == 5
    assert run("list", "composed:5:4") == 0
    assert capsys.readouterr().out != first


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["composed"], "got 'composed', wanted composed:COUNT[:SEED] with whole numbers"),
        (["composed:x"], "got 'composed:x', wanted composed:COUNT"),
        (["composed:0"], "needs the number of tasks to make, got count = 0"),
        (["no/such/folder"], "no/such/folder: no such folder"),
        (["none.jsonl"], "none.jsonl: no such file"),
        (["starter", "--level", "4"], "levels (4,)"),
    ],
)
def test_bad_sources_end_with_one_line_and_code_2(capsys, words, message):
    assert run("list", *words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("kernelmill tasks: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_a_missing_source_is_a_usage_error(capsys):
    with pytest.raises(SystemExit) as ended:
        run("list")
    assert ended.value.code == 2
    assert "SOURCE" in capsys.readouterr().err
