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
    assert lines[-1].endswith(f"train 0, heldout {len(lines) - 2}; 0 refused")


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
        (["pyproject.toml"], "pyproject.toml: a file that is no .jsonl; wanted a folder that holds level1/"),
        (["no/such/folder"], "no/such/folder: no such folder"),
        (["strater"], "got 'strater', wanted starter, composed:COUNT"),
        (["none.jsonl"], "none.jsonl: no such file"),
        (["none.jsonl@abc"], "none.jsonl: no such file"),
        (["composed:99999999999"], "makes at most 200000 tasks at once"),
        (["huggingface:some/set"], "needs a pinned revision"),
        (["starter", "--level", "4"], "has level 4; it has levels 1, 2, 3"),
    ],
)
def test_bad_sources_end_with_one_line_and_code_2(capsys, words, message):
    assert run("list", *words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("kernelmill tasks: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_refusals_come_at_the_end_with_a_count(tmp_path, capsys):
    good = "class Model:\n def forward(self, x):\n  return x + 1\ndef get_inputs():\n return []\n"
    good += "def get_init_inputs():\n return []\n"
    (tmp_path / "level1").mkdir()
    for name, text in {"1_Bad.py": "x = 1", "2_Good.py": good, "3_Bad.py": "(", "4_Good.py": good}.items():
        (tmp_path / "level1" / name).write_text(text)
    assert run("list", str(tmp_path)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines[3:5]] == ["refused", "refused"]
    assert "1_Bad.py: the source lacks a class Model" in lines[3]
    assert "3_Bad.py: the source is not Python" in lines[4]
    assert lines[5].startswith("2 tasks, 1 structures")
    assert lines[5].endswith("2 refused")


@pytest.mark.parametrize(
    ("others", "said"),
    [
        (["3_Lost.py"], "1 .py file outside level1/, level2/, ... is left out, e.g. {}/3_Lost.py; tasks are level"),
        (["Level2/1_Case.py"], "1 .py file outside"),
        (["level1/deeper/1_Deep.py", "more/a/b.py", "more/c.py", "z.py"], "4 .py files outside"),
        (
            [
                "README.md",
                "__init__.py",
                "1_Relu_triton.py",
                ".hidden/x.py",
                "level1/__pycache__/y.py",
                "level2/1_T.py",
            ],
            "",
        ),
    ],
)
def test_files_that_no_level_holds_are_told_in_one_line(tmp_path, capsys, others, said):
    good = "class Model:\n def forward(self, x):\n  return x + 1\ndef get_inputs():\n return []\n"
    good += "def get_init_inputs():\n return []\n"
    for name in ("level1/1_Good.py", *others):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(good)
    assert run("list", str(tmp_path)) == 0
    err = capsys.readouterr().err
    assert err.count("\n") == bool(said)
    assert said.format(tmp_path) in err


def test_a_source_of_refusals_shows_them_all(tmp_path, capsys):
    path = tmp_path / "data.jsonl"
    path.write_text("{\n[]\n")
    assert run("list", str(path)) == 2
    captured = capsys.readouterr()
    assert captured.out.count("refused: ") == 2
    assert "(and 1 more;" in captured.err


def test_a_missing_source_is_a_usage_error(capsys):
    with pytest.raises(SystemExit) as ended:
        run("list")
    assert ended.value.code == 2
    assert "SOURCE" in capsys.readouterr().err
