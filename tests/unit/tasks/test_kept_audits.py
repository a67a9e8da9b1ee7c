import os

import pytest

from core.tasks.audit import Audit, Kept, KeptError, as_json, audit_key, counts, summary
from core.tasks.task import Task


def audit(name, status="sound", **margins):
    rows = {"allclose_1e-2": margins, "ours": margins} if margins else {}
    return Audit(task_id=name, key=audit_key(name), status=status, margins=rows)


def task(name):
    return Task(task_id=f"again/{name}", name=name, level=1, origin="again", source=name)


def test_what_is_kept_survives_a_restart_and_a_cut_off_line(tmp_path):
    path = tmp_path / "new" / "audit.jsonl"
    kept = Kept(path)
    kept.put(audit("a", zeros=5.0))
    kept.put(audit("b", "degenerate", zeros=0.5))
    path.write_bytes(path.read_bytes()[:-9])
    again = Kept(path)
    found = again.get(task("a"), "cpu")
    assert found is not None
    assert (found.task_id, found.best()) == ("again/a", ("zeros", 5.0))
    assert again.get(task("b"), "cpu") is None
    assert again.get(task("a"), "full") is None
    again.put(audit("c"))
    assert Kept(path).get(task("c"), "cpu") is not None


@pytest.mark.parametrize(
    "content",
    [
        b"hello\n",
        b"no end of line",
        b'{"steps": 3}',
        b"[]",
        b"\x93NUMPY\x01\n\xff",
        b'{"task_id": 3}\n',
        b"\n",
        b"[" * 9999,
    ],
)
@pytest.mark.parametrize("before", [0, 1])
def test_a_file_that_is_somebody_elses_is_refused_and_left_as_it_was(tmp_path, content, before):
    path = tmp_path / "file"
    for name in range(before):
        Kept(path).put(audit(str(name)))
    whole = (path.read_bytes() if before else b"") + content
    path.write_bytes(whole)
    with pytest.raises(KeptError, match=rf"file:{before + 1}: no kept audit, got .* wanted .*") as refused:
        Kept(path)
    assert "\n" not in str(refused.value)
    assert path.read_bytes() == whole


def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "folder").mkdir()
    for name, said in (("fifo", "a FIFO"), ("folder", "a folder"), ("loop", "a link"), ("n" * 300, "too long")):
        with pytest.raises(KeptError, match=said):
            Kept(tmp_path / name)
    with pytest.raises(KeptError, match="a device"):
        Kept(tmp_path / "/dev/null")


def test_a_file_that_can_no_longer_be_written_is_told(tmp_path):
    path = tmp_path / "new" / "audit.jsonl"
    kept = Kept(path)
    kept.put(audit("a"))
    path.unlink()
    path.mkdir()
    with pytest.raises(KeptError, match=r"audit.jsonl: can't be written .Is a directory"):
        kept.put(audit("b"))


def test_counts_are_over_audited_tasks():
    audits = [audit("a", zeros=0.5, stale=2.0), audit("b", zeros=1.0, stale=0.0), audit("c", "unknown")]
    row = counts(audits)["allclose_1e-2"]
    assert row == {"zeros": 2, "constant": 0, "stale": 1, "identity": 0, "any": 2}
    assert list(summary(audits))[:2] == [
        "3 tasks: 2 sound, 0 degenerate, 0 noise, 1 unknown",
        "of 2 audited, how many accept each answer (rule `ours` decides):",
    ]


def test_json_holds_facts_counts_and_rows():
    import json

    table = json.loads(as_json([audit("a", zeros=0.123456)], source="x"))
    assert table["source"] == "x"
    assert table["counts"]["ours"]["zeros"] == 1
    assert table["tasks"][0]["task_id"] == "a"
    assert table["tasks"][0]["margins"]["ours"] == [0.123, None, None, None]
