"""`kernelmill ledger`: exit codes and what it prints."""

import argparse
import json
from pathlib import Path

import pytest

from bus.messages import Fact, GroupOutcome, Step
from core.record.record import Record
from runners import ledger


def call(*argv: str) -> int:
    parser = argparse.ArgumentParser()
    ledger.add_parser(parser.add_subparsers())
    args = parser.parse_args(["ledger", *argv])
    return args.run(args)


def write(folder: Path, *groups: str) -> None:
    data = {"group_id": "g", "admission": 0, "size": 2, "task_id": "t", "level": 1, "role": "generator"}
    with Record(folder) as record:
        record.append_facts([Fact(run_id="r", kind="admitted", actor="sampler", at=1.0, data=data)])
        record.append_steps([Step(run_id="r", kind="incarnation", incarnation=1, step=0, version=0)])
        for number, group in enumerate(groups, 1):
            outcome = GroupOutcome(group_id=group, admission=number - 1, trained=(0, 1))
            record.append_steps(
                [Step(run_id="r", kind="step", incarnation=1, step=number, version=number, groups=(outcome,))]
            )


def test_a_balanced_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "g")
    assert call(str(tmp_path)) == 0
    out = capsys.readouterr().out
    assert "episodes  2 submitted = 2 trained + 0 rejected + 0 pending" in out
    assert out.endswith("\nbalanced\n")


def test_a_torn_record_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "g")
    with (tmp_path / "record" / "steps.jsonl").open("ab") as file:
        file.write(b'{"run_id": "r", "ki')
    assert call(str(tmp_path)) == 0
    assert "record/steps.jsonl ends in 19 bytes of a record that was not written to its end" in capsys.readouterr().out


def test_an_unbalanced_run_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "g", "h")
    assert call(str(tmp_path), "--json") == 1
    told = json.loads(capsys.readouterr().out)
    assert told["balanced"] is False
    assert told["problems"] == ["group h was consumed at step 2 without admission"]
    assert told["episodes"]["trained"] == 4
    assert call(str(tmp_path)) == 1
    assert "episodes  2 submitted ≠ 4 trained" in capsys.readouterr().out


def test_no_run_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(str(tmp_path / "nowhere")) == 2
    assert "there is no such run folder" in capsys.readouterr().err
