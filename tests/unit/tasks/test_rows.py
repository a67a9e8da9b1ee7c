import json

import pytest

from core.tasks.format import TaskError, build, with_sizes
from core.tasks.kernelbook import MIT_REVISION, renamed
from core.tasks.rows import task_of_row
from core.tasks.sakana import profile
from core.tasks.sources import load_source

BOOK = """\
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return x + 1


class ScaleLayer(nn.Module):
    def __init__(self, start=2.0):
        super(ScaleLayer, self).__init__()
        self.scale = nn.Parameter(torch.tensor(start))  # not a ScaleLayer's own
        self.inner = Model()

    def forward(self, x):
        return self.inner(x) * self.scale


def get_inputs():
    return [torch.rand([4, 4])]


def get_init_inputs():
    return [[], {"start": 3.0}]
"""
KERNELBOOK = {
    "uuid": 5,
    "entry_point": "ScaleLayer",
    "repo_name": "a/b",
    "python_code": BOOK,
    "triton_code": "...",
    "licenses": ["MIT"],
}


def row(fields, **options):
    return task_of_row(fields, origin="set", backend="triton", where="row 3", **options)


def test_kernelbook_rows_become_models_of_their_entry_point():
    task = row(KERNELBOOK, revision=MIT_REVISION)
    assert (task.task_id, task.level) == ("set/5_ScaleLayer", 2)
    problem = build(task.source)
    model = problem.model(0)
    assert problem.init_kwargs == {"start": 3.0}
    assert type(model.inner).__name__ == "OtherModel"
    x = problem.inputs(0)[0]
    assert (model(x) == (x + 1) * 3).all()
    assert "# not a ScaleLayer's own" in task.source


@pytest.mark.parametrize("revision", ["", "main", "f" * 40])
def test_kernelbook_is_refused_under_any_other_revision(revision):
    with pytest.raises(TaskError, match=f"row 3: a row of KernelBook.* up to revision {MIT_REVISION}; got") as caught:
        row(KERNELBOOK, revision=revision)
    assert "\n" not in str(caught.value)


def test_kernelbook_in_a_jsonl_file_needs_the_revision_too(tmp_path):
    path = tmp_path / "book.jsonl"
    path.write_text(json.dumps(KERNELBOOK))
    with pytest.raises(TaskError, match="got revision ''"):
        load_source(kind="jsonl", path=str(path))
    assert len(load_source(kind="jsonl", path=str(path), revision=MIT_REVISION)) == 1


def test_kernelbook_entry_points_must_be_classes_of_the_source():
    for name in ("Missing", "scale", "forward", "OtherModel"):
        with pytest.raises(TaskError, match=rf"row 3 \(uuid 5\): .* class {name}, but .* are Model, ScaleLayer$"):
            row({**KERNELBOOK, "entry_point": name}, revision=MIT_REVISION)
    with pytest.raises(
        TaskError, match="row 3: entry_point names the class A, but the classes in python_code are none"
    ):
        row({"python_code": "x = 1", "entry_point": "A"}, revision=MIT_REVISION)
    with pytest.raises(TaskError, match="entry_point must be the name of a class"):
        row({**KERNELBOOK, "entry_point": None}, revision=MIT_REVISION)
    with pytest.raises(TaskError, match="the source is not Python"):
        row({**KERNELBOOK, "python_code": "class ScaleLayer(:\n  ("}, revision=MIT_REVISION)


def test_renaming_leaves_texts_and_longer_names_alone():
    source = "é = 'Net'; Net = NetWork = Net  # Net\n"
    assert renamed(source, {"Net": "Model"}, "x") == "é = 'Net'; Model = NetWork = Model  # Net\n"


def test_sakana_rows_with_nulls_and_repeats(tmp_path):
    module = BOOK.replace("Model", "Inner").replace("ScaleLayer", "Model")
    base = {"Op_Name": "19_ReLU", "Level_ID": 1, "Task_ID": 19, "PyTorch_Code_Module": module, "Correct": None}
    rows = [{**base, "Kernel_Name": "a", "NCU_Profile": None}, {**base, "Kernel_Name": "b", "Max_Diff": None}]
    rows.append({**base, "PyTorch_Code_Module": None})
    path = tmp_path / "archive.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    refused = []
    tasks = load_source(kind="jsonl", path=str(path), refused=refused)
    assert [task.task_id for task in tasks] == ["archive/l1_19_19_ReLU"]
    assert [one.reason for one in refused] == [f"{path}:3: PyTorch_Code_Module is empty"]


def test_profiles_are_python_reprs():
    assert profile("{'metrics': {'a': None, 'ok': True}}", "x") == {"metrics": {"a": None, "ok": True}}
    assert profile(None, "x") is None
    with pytest.raises(TaskError, match="x: a profile must be the repr of a dict"):
        profile("__import__('os')", "x")


def test_sizes_are_replaced_where_they_are_assigned():
    source = BOOK.replace("Model", "Inner").replace("ScaleLayer", "Model") + "N, M = 4, 6\nshape = (N, M)\nK: int = 3\n"
    namespace = build(with_sizes(source, {"M": 2, "K": 9}, "x")).namespace
    assert (namespace["shape"], namespace["K"]) == ((4, 2), 9)
