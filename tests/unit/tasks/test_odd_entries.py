"""Whatever stands where a task should be is refused in a line, and never waited for; the rest is read."""

import json
import os
import socket
from pathlib import Path

import pytest

from core.tasks import folder as folders
from core.tasks import jsonl
from core.tasks.format import TaskError
from core.tasks.loading import load_tasks
from core.tasks.rows import MAX_SOURCE
from core.tasks.sources import load_source
from runners import cli

pytestmark = pytest.mark.timeout(60)  # what would wait for ever

GOOD = """\
class Model:
    def forward(self, x):
        return x + 1

def get_inputs():
    return []

def get_init_inputs():
    return []
"""


@pytest.fixture
def bench(tmp_path):
    for level, name in (("level1", "1_good.py"), ("level2", "2_good.py")):
        (tmp_path / "bench" / level).mkdir(parents=True)
        (tmp_path / "bench" / level / name).write_text(GOOD)
    return tmp_path / "bench"


def dangling(path):
    path.symlink_to("nowhere")


def loop(path):
    path.symlink_to(path.name)


def fifo(path):
    os.mkfifo(path)


def listening(path):
    here = Path.cwd()
    os.chdir(path.parent)  # a socket's name is short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


def device(path):
    path.symlink_to("/dev/zero")


def huge(path):
    path.touch()
    os.truncate(path, 2**40)  # takes no room, and could never be read


ODD = {
    dangling: "a link to nothing",
    loop: "a link that leads back to itself",
    fifo: "a FIFO",
    listening: "a socket",
    device: "a device",
    Path.mkdir: "a folder",
}


@pytest.mark.parametrize("make", [*ODD, huge])
def test_an_odd_entry_is_refused_and_the_rest_is_read(bench, make):
    make(bench / "level2" / "9_odd.py")
    (bench / "level2" / "notes").mkdir()  # not named like a task
    dangling(bench / "level2" / "notes.txt")
    refused = []
    assert [t.name for t in load_source(kind="folder", path=str(bench), refused=refused)] == ["l1_1_good", "l2_2_good"]
    why = ODD[make] + ", wanted a file" if make in ODD else f"{2**40:,} bytes; at most {MAX_SOURCE:,} are read"
    assert [one.reason for one in refused] == [f"{bench}/level2/9_odd.py: {why}"]


@pytest.mark.parametrize("make", [*(make for make in ODD if make is not Path.mkdir), huge])
def test_a_folder_of_a_level_that_is_none_is_refused(bench, make):
    make(bench / "level3")
    refused = []
    assert len(load_source(kind="folder", path=str(bench), refused=refused)) == 2
    assert [one.reason for one in refused] == [f"{bench}/level3: {ODD.get(make, 'a file')}, wanted a folder"]


@pytest.mark.parametrize("kind", ["folder", "jsonl"])
@pytest.mark.parametrize("make", [*ODD, huge])
def test_a_source_that_is_something_else(tmp_path, kind, make):
    path = tmp_path / "odd.jsonl"
    make(path)
    with pytest.raises(TaskError) as caught:
        load_source(kind=kind, path=str(path))
    said = str(caught.value)
    assert "\n" not in said and said.startswith(str(path))
    if make is huge:
        assert ("a file that is no .jsonl" if kind == "folder" else f"{2**40:,} bytes") in said
    else:
        assert (ODD[make] if (kind, make) != ("folder", Path.mkdir) else "holds no folder level1") in said


@pytest.mark.parametrize("make", [*ODD, huge])
def test_the_commands_list_what_is_left(bench, make, capsys):
    make(bench / "level2" / "9_odd.py")
    assert cli.main(["tasks", "list", str(bench)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("1 refused")
    assert cli.main(["audit", str(bench), "--level", "3"]) == 2
    assert "none of its 2 tasks" in capsys.readouterr().err


def denied(*_, **__):
    raise PermissionError(13, "Permission denied")


def test_what_may_not_be_read_is_refused(bench, monkeypatch, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"code": GOOD, "level": 1, "name": "x"}))
    reads, lists = os.open, Path.iterdir
    secret = bench / "level2" / "2_good.py"
    monkeypatch.setattr(os, "open", lambda path, *rest: denied() if path in (secret, rows) else reads(path, *rest))
    refused = []
    assert len(load_source(kind="folder", path=str(bench), refused=refused)) == 1
    monkeypatch.setattr(Path, "iterdir", lambda path: denied() if path == secret.parent else lists(path))
    assert len(load_source(kind="folder", path=str(bench), refused=refused)) == 1
    why = "can't be read (Permission denied)"
    assert [one.reason for one in refused] == [f"{secret}: {why}", f"{secret.parent}: {why}"]
    with pytest.raises(TaskError, match=r"rows.jsonl: can't be read \(Permission denied\)"):
        load_source(kind="jsonl", path=str(rows))
    monkeypatch.setattr(Path, "iterdir", denied)
    with pytest.raises(TaskError, match=r"bench: can't be read \(Permission denied\)"):
        load_source(kind="folder", path=str(bench))
    monkeypatch.setattr(Path, "stat", denied)
    for kind in ("folder", "jsonl"):
        with pytest.raises(TaskError, match=r"can't be read \(Permission denied\)"):
            load_source(kind=kind, path=str(bench))


@pytest.mark.parametrize("name", [b"3_\xff.py", b"3_\x1b[2J.py", b"3_a\nb.py"])
def test_a_name_that_no_line_can_hold_is_refused_and_told_escaped(bench, name, capsys):
    Path(os.fsdecode(os.fsencode(bench / "level2") + b"/" + name)).write_text(GOOD)
    assert cli.main(["tasks", "list", str(bench)]) == 0
    out = capsys.readouterr().out
    assert out.encode() and "\x1b" not in out
    assert [line.count("the name has control characters") for line in out.splitlines()][-2:] == [1, 0]


@pytest.mark.parametrize(("length", "bad"), [(999, [3]), (1001, [2, 3, 4]), (2002, [2, 3, 4]), (5000, [2, 3, 4])])
def test_rows_that_are_too_long_are_refused_one_by_one(tmp_path, monkeypatch, length, bad):
    monkeypatch.setattr(jsonl, "MAX_ROW", 1000)
    path = tmp_path / "rows.jsonl"
    row = json.dumps({"code": GOOD, "level": 1, "name": "x"})
    path.write_text("\n".join([row, row.ljust(length), "[]", row.ljust(length)]))
    refused = []
    assert len(load_source(kind="jsonl", path=str(path), refused=refused)) == 1
    assert [one.where for one in refused] == [f"{path}:{number}" for number in bad]


def test_a_source_text_has_a_bound_wherever_it_comes_from(tmp_path, bench):
    long = GOOD + "#" * MAX_SOURCE
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"code": long, "level": 1, "name": "x"}))
    with pytest.raises(TaskError, match=r"rows.jsonl:1: the source has .* characters; at most 1,048,576 are read"):
        load_source(kind="jsonl", path=str(path))
    (bench / "level1" / "2_long.py").write_text(long)
    with pytest.raises(TaskError, match=r"2_long.py: .* bytes; at most 1,048,576 are read"):
        load_source(kind="folder", path=str(bench))


def test_ends_of_lines_are_read_as_before(bench):
    (bench / "level1" / "1_good.py").write_bytes(GOOD.replace("\n", "\r\n").encode())
    assert load_source(kind="folder", path=str(bench))[0].source == GOOD
    assert next(iter(folders.folder_tasks(bench))).source == GOOD


def test_refusals_of_other_levels_don_t_count(bench, tmp_path):
    (bench / "level2" / "1_bin.py").write_bytes(b"\xff")
    dangling(bench / "level3")
    path = tmp_path / "rows.jsonl"
    rows = [{"code": GOOD, "level": 1, "name": "good"}, {"code": "x = 1", "extra_info": {"level": "2"}, "name": "bad"}]
    rows += [{"PyTorch_Code_Module": "", "Level_ID": 2}]
    path.write_text("\n".join(map(json.dumps, rows)))
    for kind, source in (("folder", bench), ("jsonl", path)):
        wanted = {"kind": kind, "path": str(source), "levels": (1,)}
        assert len(load_source(**wanted)) == len(load_tasks([wanted], "triton")) == 1
        with pytest.raises(TaskError, match=r"1_bin.py|rows.jsonl:2"):
            load_source(**{**wanted, "levels": (1, 2)})
    # One that does not say of which level it is counts for all.
    path.write_text("{\n" + json.dumps(rows[0]))
    with pytest.raises(TaskError, match=r"rows.jsonl:1: the line is not JSON"):
        load_source(kind="jsonl", path=str(path), levels=(1,))
    (bench / "level1" / "1_good.py").unlink()
    (bench / "level2" / "2_good.py").unlink()
    with pytest.raises(TaskError, match=r"nothing in it has level 1; what it has of others is no task \(2\)"):
        load_source(kind="folder", path=str(bench), levels=(1,))


def test_a_run_that_refused_files_stop_is_told_how_to_leave_them_out(bench):
    sources = [{"kind": "folder", "path": str(bench)}]
    fifo(bench / "level2" / "3_odd.py")
    advice = r'; tasks.refused = "skip" leaves out what is no task$'
    with pytest.raises(TaskError, match=r"^tasks.train: .*3_odd.py: a FIFO, wanted a file" + advice):
        load_tasks(sources, "triton")
    dangling(bench / "level2" / "4_odd.py")
    with pytest.raises(
        TaskError, match=r"^tasks.heldout: .*\(and 1 more; `kernelmill tasks list` shows all\)" + advice
    ):
        load_tasks(sources, "triton", "heldout")
    assert len(load_tasks(sources, "triton", refused=[])) == 2
    for level in (1, 2):
        next((bench / f"level{level}").glob("*_good.py")).unlink()
    with pytest.raises(TaskError) as caught:  # nothing would be left
        load_tasks(sources, "triton")
    assert "skip" not in str(caught.value)


def test_a_byte_order_mark_is_no_part_of_a_task(tmp_path):
    (tmp_path / "level1").mkdir()
    (tmp_path / "level1" / "1_a.py").write_text("\ufeff" + GOOD)
    (tmp_path / "rows.jsonl").write_text(json.dumps({"code": "\ufeff" + GOOD, "level": 1, "name": "a"}))
    for kind, path in (("folder", tmp_path), ("jsonl", tmp_path / "rows.jsonl")):
        (one,) = load_source(kind=kind, path=str(path))
        assert one.source == GOOD
