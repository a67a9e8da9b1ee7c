"""A run whose files were cut: whoever reads it says in a line what was cut off and what is left out for it."""

import re

import pytest

from core.record import cuts
from core.record.record import FILES
from runners import cli
from tests.unit.watching.scene import write_run

READERS = {
    "report": ["report"],
    "ledger": ["ledger"],
    "ledger --json": ["ledger", "--json"],
    "tail": ["tail", "--no-follow"],
    "top": ["top", "--once"],
}
WHAT = {"facts.jsonl": "facts", "steps.jsonl": "steps", "episodes.msgpack": "episodes"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("whole") / "run", steps=6, held_out_tasks=3)


@pytest.fixture
def run(whole, tmp_path):
    import shutil

    return shutil.copytree(whole, tmp_path / "run")


def cut(path, share):
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])


def at_a_record_s_end(path):
    """As a copy that was stopped, or a file system that lost its last pages: what is left looks whole."""
    if path.suffix == ".jsonl":
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-3]))
    else:
        from core.record import files

        ends = [end for _, end in files.maps(path)]
        path.write_bytes(path.read_bytes()[: ends[-4]])


def torn(path):
    """As a writer that was killed leaves it."""
    with path.open("ab") as file:
        file.write(b'{"run_id": "r", "ki' if path.suffix == ".jsonl" else b"\x84\xa6run_id\xa1r\xa7ep")


CUT = r"is cut off at [\d,]+ of at least [\d,]+ bytes: the {} after that are left out"
DAMAGES = {
    "in the middle of a record": (lambda path: cut(path, 0.61), CUT),
    "at a record's end": (at_a_record_s_end, CUT),
    "to nothing": (lambda path: cut(path, 0.0), CUT),
    "missing": (lambda path: path.unlink(), r"is missing, it had [\d,]+ bytes: all {} are left out"),
    "torn": (torn, r"ends in \d+ bytes of a record that was not written to its end; left out"),
}


def read(words, run, capsys):
    code = cli.main([*words, str(run)])
    out, err = capsys.readouterr()
    return code, " ".join((out + err).replace("│", " ").split()), err


@pytest.mark.parametrize("reader", READERS)
def test_nothing_is_said_of_a_whole_run(whole, capsys, reader):
    assert cuts.left_out(whole) == []
    code, said, err = read(READERS[reader], whole, capsys)
    assert code == 0 and "left out" not in said.replace('"left_out": []', "") and err == ""
    assert "as far as" not in said


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", WHAT)
def test_what_was_cut_is_told_by_every_reader(run, capsys, name, damage):
    make, pattern = DAMAGES[damage]
    make(run / "record" / name)
    (line,) = cuts.left_out(run)
    assert re.match(rf"record/{re.escape(name)} {pattern.format(WHAT[name])}", line) and "\n" not in line
    for reader, words in READERS.items():
        code, said, err = read(words, run, capsys)
        assert said.count(line) == 1, (reader, said)
        assert "Traceback" not in err and code in (0, 1)
        assert ("balanced, as far as the record can be read" in said) == (reader == "ledger")
        if reader in ("report", "tail", "top"):
            assert code == 0 and err.splitlines() == [f"kernelmill {words[0]}: {run}: {line}"]
    assert f"Not whole: {line}" in (run / "report.html").read_text()


def test_gauges_and_settings_that_are_missing_are_told(run, capsys):
    (run / "record" / "metrics.jsonl").unlink()
    (run / "config.json").unlink()
    code, _, err = read(["report"], run, capsys)
    assert code == 0 and len(err.splitlines()) == 2
    assert "metrics.jsonl is missing: all gauges over time are left out" in err
    assert "config.json is missing: the settings are left out" in err


def test_a_run_that_has_only_begun_lacks_nothing(tmp_path):
    from bus.messages import Step
    from core.record.record import Record

    with Record(tmp_path) as record:
        record.append_steps([Step(run_id="r", kind="incarnation", incarnation=1, step=0, version=0)], last_seq=1)
    assert cuts.left_out(tmp_path) == []


@pytest.mark.parametrize("name", ["heldout-before.json", "heldout-after.json"])
@pytest.mark.parametrize("share", [0.0, 0.5])
def test_held_out_figures_that_were_cut_are_left_out_of_the_report(run, capsys, name, share):
    cut(run / name, share)
    code, _, err = read(["report"], run, capsys)
    (line,) = err.splitlines()
    assert code == 0 and f"{run}: {name} is no held-out evaluation: " in line
    assert line.endswith(": its figures and kernels are left out")
    assert "its figures and kernels are left out" in (run / "report.html").read_text()


@pytest.mark.parametrize("name", FILES.values())
@pytest.mark.parametrize("reader", READERS)
def test_damage_that_is_no_cut_is_told_by_who_needs_the_file(run, capsys, name, reader):
    path = run / "record" / name
    data = path.read_bytes()
    path.write_bytes(data[:100] + b"\n\xc1\xc1\n" + data[100:])
    code, said, _ = read(READERS[reader], run, capsys)
    needed = {
        "report": set(FILES.values()),
        "top": {"facts.jsonl", "steps.jsonl", "metrics.jsonl", "episodes.msgpack"},
        "tail": {"facts.jsonl", "steps.jsonl"},
    }.get(reader, set(FILES.values()) - {"metrics.jsonl"})
    if name in needed:
        told = str(path) in said or f"record/{name}: 3 lines that are no records are left out" in said
        assert told, said
    assert code == 2 or "left out" in said or name not in needed
    assert "Traceback" not in said


def test_a_position_that_is_no_file_of_positions_is_told(run, capsys):
    (run / "record" / "position.json").write_text("{")
    code, _, err = read(["report"], run, capsys)
    assert code == 0 and "position.json is no position file" in err and len(err.splitlines()) == 1


def test_an_audit_that_was_cut_is_told_and_made_again(tmp_path, capsys):
    kept = tmp_path / "kept.jsonl"
    kept.write_bytes(b'{"task_id":"sta')
    from core.tasks.audit import Kept

    assert Kept(kept).torn == 15 and kept.read_bytes() == b""
    kept.write_bytes(b'{"task_id":"sta')

    def interrupted(*_):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("core.evaluation.audit.auditor.Auditor.audit", interrupted)
        assert cli.main(["audit", "starter", "--limit", "1", "--keep", str(kept)]) == 130
    assert "ended in 15 bytes of an audit that was not written to its end: left out" in capsys.readouterr().err
