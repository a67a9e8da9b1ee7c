"""Messages show no Python: tuples, None, True, paths and the names of types are nobody's words."""

import datetime
import re
import subprocess
import sys
from pathlib import Path

import pytest

from configs.load import ConfigError, load, load_sft
from core.record.files import RecordError
from core.run_folder import read_object
from core.shown import shown
from core.tasks.format import TaskError
from core.tasks.loading import load_tasks
from core.tasks.rows import make_task, task_of_row
from core.tasks.sources import load_source
from runners.cli import main

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "configs" / "demo.toml"
PYTHON = re.compile(
    r"\(\d+,|\(\d+, \d|\bNone\b|\bTrue\b|\bFalse\b|NoneType|Path\(|\bset\(|frozenset|\bdict\b|<\w+\.\w+|\{'kind'"
)
"""How Python writes what people write otherwise."""


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        ((9,), "[9]"),
        ([True, None, "a", 1.5], "[true, null, 'a', 1.5]"),
        ({"a": {"b": (None,)}}, "{'a': {'b': [null]}}"),
        ({3}, "[3]"),
        (Path("a/b"), "'a/b'"),
        (datetime.date(2026, 1, 2), "2026-01-02"),
        (10**100, "a number of more than 80 digits"),
        ("x" * 100, "'" + "x" * 78 + "…"),
    ],
)  # fmt: skip
def test_a_value_is_written_as_people_write_it(value, text):
    assert shown(value) == text


@pytest.mark.parametrize(
    "words",
    [
        ["starter", "--level", "9"],
        ["starter", "--level", "9", "8", "--split", "train"],
        ["composed:5", "--level", "9"],
        ["composed:5", "--level", "9", "12", "--split", "heldout"],
        ["composed:0"],
        ["FOLDER", "--level", "7"],
        ["FOLDER", "--level", "7", "8"],
        ["FOLDER"],
    ],
)
def test_what_tasks_list_can_not_find_is_said_without_python(words, tmp_path, capsys):
    (tmp_path / "level1").mkdir()
    (tmp_path / "level1" / "a.py").write_text("x = 1\n")
    words = [str(tmp_path) if word == "FOLDER" else word for word in words]
    assert main(["tasks", "list", *words]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and not PYTHON.search(said), said


def test_levels_that_are_not_there_are_told_with_those_that_are():
    with pytest.raises(TaskError, match=r"none of its 74 tasks has level 9; it has levels 1, 2, 3; train 58, heldout"):
        load_source(kind="starter", levels=(9,))
    with pytest.raises(TaskError, match="has levels 9, 8 and split train;"):
        load_source(kind="starter", levels=(9, 8), split="train")
    with pytest.raises(TaskError, match=r"100 tasks were asked for, but it has only \d+ of level 1 and split heldout$"):
        load_source(kind="starter", levels=(1,), split="heldout", count=100)
    with pytest.raises(TaskError, match=r"100 tasks were asked for, but it has only 74$"):
        load_source(kind="starter", count=100)


def test_messages_about_rows_and_sources_show_no_python(tmp_path):
    SOURCE = "import torch\nclass Model(torch.nn.Module):\n    pass\n"
    wrong = [
        lambda: make_task(name="n", level=None, origin="o", source=SOURCE, backend="triton", where="row 1"),
        lambda: make_task(name="n", level=(1, 2), origin="o", source=SOURCE, backend="triton", where="row 1"),
        lambda: make_task(name="n", level=1, origin="o", source=None, backend="triton", where="row 1"),
        lambda: make_task(name="n", level=1, origin="o", source={"a": True}, backend="triton", where="row 1"),
        *(
            lambda row=row: task_of_row(row, origin="o", backend="triton", where="row 1")
            for row in (None, [1, None], True, {"code": None}, {"label": "x", "extra_info": None})
        ),
        lambda: load_tasks([], "triton"),
    ]
    for call in wrong:
        with pytest.raises(TaskError) as caught:
            call()
        assert not PYTHON.search(str(caught.value)), str(caught.value)
    for text in ("null", "[1, true]", "3"):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(RecordError) as caught:
            read_object(tmp_path / "config.json")
        assert not PYTHON.search(str(caught.value)), str(caught.value)


@pytest.mark.parametrize(
    "override",
    [
        "learner.lr={a=true}", "run.name=[true, 1]", "learner.betas=[true]", "tasks.train=[true]", "tasks.train=false",
        "tasks.train=[{kind='folder', levels=[true]}]", "rollout.cards=[[1]]", "learner.lora_targets=[0]",
        "run=true",
    ],
)  # fmt: skip
def test_values_of_recipes_are_repeated_as_toml_writes_them(override):
    with pytest.raises(ConfigError) as caught:
        load(DEMO, [override])
    assert not PYTHON.search(str(caught.value)), str(caught.value)


def test_a_recipe_of_the_other_kind_is_told_so_and_what_is_known_once(tmp_path):
    with pytest.raises(
        ConfigError, match=r"unknown keys run, tasks, .*: this is a run's recipe, for `up`; known"
    ) as one:
        load_sft(DEMO)
    with pytest.raises(
        ConfigError, match=r"unknown keys out, seed, .*: this is a recipe for `sft`; known here"
    ) as other:
        load(ROOT / "configs" / "demo-sft.toml")
    with pytest.raises(ConfigError, match=r"; did you mean run.seed"):
        load(DEMO, ["seed=3"])
    with pytest.raises(ConfigError, match=r"keys learner.zzz, learner.qqq; known .*also zzz, qqq; known") as both:
        load(DEMO, ["zzz=1", "qqq=1", "learner.zzz=1", "learner.qqq=1"])
    for caught, lists in ((one, 1), (other, 1), (both, 2)):
        assert str(caught.value).count("known here") == lists
    with pytest.raises(ConfigError, match=r"learner.k6, learner.k7 \(and 12 more\); known here"):
        load(DEMO, [f"learner.k{number}=1" for number in range(20)])


def test_the_installed_command_says_the_same():
    words = [sys.executable, "-m", "runners.cli", "sft", "--config", "configs/demo.toml"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stderr.count("architecture") == 1


def test_a_folders_file_needs_no_number_in_its_name(tmp_path):
    from core.tasks.starter import STARTER

    source = next(
        path for path in sorted((STARTER / "level1").glob("*.py")) if path.name[0] != "_" and "_triton" not in path.stem
    )
    (tmp_path / "level1").mkdir()
    for name in ("noindex", "10_ten", "9_nine"):
        (tmp_path / "level1" / f"{name}.py").write_text(source.read_text())
    found = [task.name for task in load_source(kind="folder", path=str(tmp_path))]
    assert found == ["l1_noindex", "l1_9_nine", "l1_10_ten"]
