import json
import re

import pytest

from core.tasks.compose import compose
from core.tasks.format import TaskError
from core.tasks.rows import task_of_row
from core.tasks.sources import load_source
from core.tasks.split import side_of
from core.tasks.structure import structure_of
from core.tasks.task import Task

RELU = """\
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)

def get_inputs():
    return [torch.randn(8)]

def get_init_inputs():
    return []
"""
SLIME = {
    "prompt": [{"role": "user", "content": "Write a kernel."}],
    "label": RELU,
    "instance_id": "kernel_bench_triton_lv1_19",
    "extra_info": {"level": 1, "problem_id": "19", "problem_name": "19_ReLU.py", "task_type": "kernelbench"},
}


@pytest.fixture
def folder(tmp_path):
    for level, names in {"level1": ["19_ReLU.py", "2_Abs.py", "2_Abs_triton.py"], "level2": ["1_Exp.py"]}.items():
        (tmp_path / "bench" / level).mkdir(parents=True)
        for name in names:
            operator = re.search(r"_(\w+?)(_triton)?\.py", name).group(1).lower()
            (tmp_path / "bench" / level / name).write_text(RELU.replace("torch.relu", f"torch.{operator}"))
    return tmp_path / "bench"


def test_folder_is_read_by_level_and_number_without_answers(folder):
    tasks = load_source(kind="folder", path=str(folder), backend="cuda")
    assert [(task.task_id, task.level, task.structure) for task in tasks] == [
        ("bench/l1_2_Abs", 1, "abs(i0)"),
        ("bench/l1_19_ReLU", 1, "relu(i0)"),
        ("bench/l2_1_Exp", 2, "exp(i0)"),
    ]
    assert {task.backend for task in tasks} == {"cuda"}


def test_jsonl_in_both_layouts(tmp_path):
    path = tmp_path / "data.jsonl"
    plain = {"code": RELU.replace("relu", "sin"), "level": "2", "name": "7_Sin", "problem_id": 7}
    path.write_text(json.dumps(SLIME) + "\n\n" + json.dumps(plain) + "\n")
    tasks = load_source(kind="jsonl", path=str(path))
    assert [(task.task_id, task.level, task.structure) for task in tasks] == [
        ("data/kernel_bench_triton_lv1_19", 1, "relu(i0)"),
        ("data/l2_7_Sin", 2, "sin(i0)"),
    ]


def test_splits_are_disjoint_and_together_everything():
    sides = {split: load_source(kind="starter", split=split) for split in ("train", "heldout", "all")}
    assert {task.structure for task in sides["train"]}.isdisjoint(task.structure for task in sides["heldout"])
    assert sorted(task.task_id for task in sides["train"] + sides["heldout"]) == sorted(t.task_id for t in sides["all"])
    assert all(side_of(task.structure) == "heldout" for task in sides["heldout"])
    assert all(task.structure == structure_of(task.source) for task in sides["all"])


def test_levels_and_a_seeded_part():
    part = load_source(kind="starter", levels=(1, 3), count=10, seed=4)
    assert len(part) == 10
    assert {task.level for task in part} == {1, 3}
    assert part == load_source(kind="starter", levels=(1, 3), count=10, seed=4)
    assert part != load_source(kind="starter", levels=(1, 3), count=10, seed=5)


def test_composed_tasks_are_the_generator_s():
    tasks = load_source(kind="composed", count=12, seed=9, split="heldout")
    assert tasks == [composition.task() for composition in compose(9, 12, "heldout")]
    assert all(isinstance(task, Task) and task.origin == "composed" for task in tasks)
    assert {task.level for task in load_source(kind="composed", count=20, levels=(3,))} == {3}


def test_an_empty_file_holds_no_task(tmp_path):
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(TaskError, match=r"empty.jsonl: it is empty; wanted at least one task"):
        load_source(kind="jsonl", path=str(tmp_path / "empty.jsonl"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "folder", "path": "nowhere"}, "nowhere: no such folder; wanted one that holds level1/"),
        ({"kind": "jsonl", "path": "nowhere.jsonl"}, "nowhere.jsonl: no such file"),
        ({"kind": "folder"}, "a task source of kind 'folder' needs a path"),
        ({"kind": "zip", "path": "x"}, "unknown kind 'zip'; known are starter, composed"),
        ({"kind": "starter", "split": "test"}, "split must be one of train, heldout, all, got 'test'"),
        (
            {"kind": "starter", "levels": (4,)},
            r"none of its \d+ tasks has level 4; it has levels 1, 2, 3; train \d+, heldout \d+",
        ),
        ({"kind": "starter", "count": 1000}, r"1000 tasks were asked for, but it has only \d+"),
        ({"kind": "composed"}, "needs the number of tasks to make, got count = 0"),
        ({"kind": "composed", "count": 3, "levels": (4,)}, r"makes levels 1, 2, 3, got level 4"),
        ({"kind": "huggingface", "path": "some/set"}, "some/set: a data set of the hub needs a pinned revision"),
    ],
)
def test_sources_that_can_t_be_used_are_refused_in_one_line(changes, message):
    with pytest.raises(TaskError, match=message) as caught:
        load_source(**changes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"data\.jsonl:1: the line is not JSON"),
        ("[1]", "a row must be an object"),
        (
            json.dumps({"level": 1, "name": "x"}),
            "the row has no source: wanted a field 'label' or 'code', got level, name",
        ),
        (json.dumps({"code": RELU, "name": "x"}), "the row has no level"),
        (json.dumps({"code": RELU, "level": 9}), "level must be one of 1, 2, 3, 4, got 9"),
        (json.dumps({"code": 5, "level": 1}), "the source must be a text that holds Python, got 5"),
        (json.dumps({"code": "x = 1", "level": 1}), r"data\.jsonl:1: the source lacks a class Model"),
        (
            json.dumps({"code": RELU.replace("return torch.relu(x)", "pass"), "level": 1}),
            "Model.forward returns nothing that is computed",
        ),
        (
            json.dumps({"code": "x = 1", "level": 1}) + "\n[]",
            "the source lacks .* \\(and 1 more; `kernelmill tasks list`",
        ),
    ],
)
def test_bad_lines_are_refused_with_their_number(tmp_path, line, message):
    path = tmp_path / "data.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(TaskError, match=message):
        load_source(kind="jsonl", path=str(path))


def test_rows_of_a_hub_data_set_become_tasks():
    row = {"code": RELU, "level": 1, "name": "19_ReLU", "problem_id": 19}
    task = task_of_row(row, origin="KernelBench", backend="triton", where="row 0")
    assert (task.task_id, task.level, task.source) == ("KernelBench/l1_19_ReLU", 1, RELU)


def test_a_missing_package_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(TaskError, match="make extra-data"):
        load_source(kind="huggingface", path="some/set", revision="0" * 40)


def test_bad_rows_are_left_out_one_by_one_when_they_may_be(tmp_path):
    path = tmp_path / "data.jsonl"
    rows = [json.dumps(SLIME), "{", json.dumps({"code": RELU, "level": 7}), json.dumps({"code": RELU, "level": 2})]
    path.write_text("\n".join(rows) + "\n")
    refused = []
    tasks = load_source(kind="jsonl", path=str(path), refused=refused)
    assert [task.task_id for task in tasks] == ["data/kernel_bench_triton_lv1_19", "data/l2"]
    assert [one.where for one in refused] == [f"{path}:2", f"{path}:3"]
    assert all(one.reason.startswith(one.where) and "\n" not in one.reason for one in refused)


def test_a_file_that_is_no_task_does_not_stop_the_folder(folder):
    (folder / "level1" / "3_Broken.py").write_text("def f(:\n")
    (folder / "level1" / "4_Latin.py").write_bytes(b"# \xe9\n")
    (folder / "level1" / "5_Deep.py").write_text(RELU + f"x = {'-' * 5000}1\n")
    refused = []
    assert len(load_source(kind="folder", path=str(folder), refused=refused)) == 3
    reasons = [one.reason.removeprefix(f"{folder}/level1/") for one in refused]
    assert reasons[0].startswith("3_Broken.py: the source is not Python")
    assert reasons[1] == "4_Latin.py: not UTF-8 text (byte 2)"
    assert len(reasons) == 3
    with pytest.raises(TaskError, match="3_Broken"):
        load_source(kind="folder", path=str(folder))


def test_the_same_task_again_counts_once_and_another_under_its_id_gets_a_number(tmp_path):
    path = tmp_path / "data.jsonl"
    others = [{**SLIME, "label": RELU.replace("relu", name)} for name in ("sin", "cos")]
    path.write_text("\n".join(json.dumps(row) for row in (SLIME, SLIME, *others, others[0])))
    tasks = load_source(kind="jsonl", path=str(path))
    ids = ["data/kernel_bench_triton_lv1_19" + end for end in ("", "~2", "~3")]
    assert [(task.task_id, task.structure) for task in tasks] == list(
        zip(ids, ("relu(i0)", "sin(i0)", "cos(i0)"), strict=True)
    )


def test_composed_tasks_are_bounded():
    with pytest.raises(TaskError, match="makes at most 200000 tasks at once, got count = 99999999999"):
        load_source(kind="composed", count=99999999999)


def test_a_local_data_set_in_both_forms(tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = [
        {"code": RELU, "level": 1, "name": "19_ReLU", "problem_id": 19},
        {"code": RELU.replace("relu", "sin"), "level": 1, "name": "20_Sin", "problem_id": 20},
        {"code": "x = 1", "level": 1, "name": "21_Bad", "problem_id": 21},
    ]
    found = datasets.DatasetDict({"level_1": datasets.Dataset.from_list(rows)})
    found.save_to_disk(str(tmp_path / "saved"))
    (tmp_path / "files").mkdir()
    found["level_1"].to_json(str(tmp_path / "files" / "level_1.jsonl"))
    for name in ("saved", "files"):
        refused = []
        tasks = load_source(kind="huggingface", path=str(tmp_path / name), refused=refused)
        assert [task.task_id for task in tasks] == [f"{name}/l1_19_ReLU", f"{name}/l1_20_Sin"]
        assert len(refused) == 1
        assert "row 2: the source lacks a class Model" in refused[0].reason
