"""The record keeps every message once, whatever crashes in the middle of a write, and reads back what was written."""

import json
import tempfile
from pathlib import Path

import msgpack
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.messages import Ended, Fact, GroupOutcome, Step
from core.columns import pack
from core.episodes.episode import Episode, Turn, tombstone
from core.evaluation.verdict import Verdict
from core.flow.ledger import Outcome
from core.record import reading
from core.record.files import RecordError
from core.record.record import EPISODES, FACTS, STEPS, Record


def fact(number: int) -> Fact:
    return Fact(run_id="r", kind="judged", actor="evaluator-1", at=100.0 + number, data={"text": "zwölf\n" * number})


def ended(number: int, end: str = "success") -> Ended:
    turn = Turn(
        index=0,
        prompt_ids=pack("ids", [1, 2]),
        completion_ids=pack("ids", [3] * number),
        logprobs=pack("logprobs", [-0.5] * number),
        versions=pack("versions", [7] * number),
        candidate="x = '\N{GREEK SMALL LETTER ALPHA}'",
        verdict=Verdict(candidate_key="k", kind="pass", compiled=True, correct=True),
        score=1.0,
    )
    episode = Episode(group_id=f"g{number}", index=number % 3, task_id="t", turns=(turn,), end=end)
    return Ended(run_id="r", episode=episode, admission=number, size=3, generator="generator-1")


def append(record: Record, stream: str, messages: list, last_seq: int) -> None:
    (record.append_facts if stream == FACTS else record.append_episodes)(messages, last_seq=last_seq)


@settings(max_examples=30, deadline=None)
@given(stream=st.sampled_from([FACTS, EPISODES]), data=st.data())
def test_each_message_stands_once_whatever_crashes(stream: str, data: st.DataObject) -> None:
    make, name = (fact, "facts.jsonl") if stream == FACTS else (ended, "episodes.msgpack")
    messages = [make(number) for number in range(12)]
    with tempfile.TemporaryDirectory() as place:
        file, position = Path(place) / "record" / name, Path(place) / "record" / "position.json"
        crashes = data.draw(st.integers(0, 6))
        while True:
            with Record(place) as record:
                at = record.position(stream)
                if at == len(messages):
                    break
                before = (file.read_bytes() if file.exists() else b"", position.exists() and position.read_bytes())
                last = data.draw(st.integers(at + 1, len(messages)))
                append(record, stream, messages[at:last], last_seq=last)
            if crashes:
                crashes -= 1
                if before[1]:
                    position.write_bytes(before[1])
                else:
                    position.unlink()
                written = file.read_bytes()
                assert written.startswith(before[0])
                file.write_bytes(written[: data.draw(st.integers(len(before[0]), len(written)))])
        if stream == FACTS:
            assert [(row.at, row.data) for row in reading.facts(place)] == [(m.at, m.data) for m in messages]
            assert file.read_bytes().count(b"\n") == len(messages)
        else:
            assert [row.episode for row in reading.episodes(place)] == [m.episode for m in messages]
            assert len(list(msgpack.Unpacker(file.open("rb")))) == len(messages)


@pytest.mark.parametrize("tail", [b"\0" * 40, b""])
def test_readers_stop_before_a_torn_record(tmp_path: Path, tail: bytes) -> None:
    with Record(tmp_path) as record:
        record.append_facts([fact(1), fact(2)])
        record.append_episodes([ended(1), ended(2)])
    wholes = {}
    for name in ("facts.jsonl", "episodes.msgpack"):
        path = tmp_path / "record" / name
        whole = wholes[name] = path.read_bytes()
        cut = whole if tail else whole[:-3]
        path.write_bytes(cut + tail)
    kept = 2 if tail else 1
    torn = reading.torn(tmp_path)
    assert torn["facts.jsonl"] == (len(tail) or len(wholes["facts.jsonl"].splitlines(keepends=True)[-1]) - 3)
    assert torn["episodes.msgpack"] == 40 if tail else 3 < torn["episodes.msgpack"] < len(wholes["episodes.msgpack"])
    assert [row.at for row in reading.facts(tmp_path)] == [101.0, 102.0][:kept]
    assert [row.episode.group_id for row in reading.episodes(tmp_path)] == ["g1", "g2"][:kept]
    with Record(tmp_path) as record:
        record.append_facts([fact(3)])
        record.append_episodes([ended(3)])
    assert [row.at for row in reading.facts(tmp_path)] == [*[101.0, 102.0][:kept], 103.0]
    assert [row.admission for row in reading.episodes(tmp_path)] == [*[1, 2][:kept], 3]
    assert reading.torn(tmp_path) == {}


def test_two_writers_never_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one would cut off what the first one is writing."""
    monkeypatch.setattr("core.record.record.LOCK_WAIT_S", 0.3)
    with Record(tmp_path) as first:
        first.append_facts([fact(1)])
        (tmp_path / "record" / "facts.jsonl").open("ab").write(b'{"half of the first')
        with pytest.raises(RecordError, match="written by another recorder"):
            Record(tmp_path)
        assert (tmp_path / "record" / "facts.jsonl").read_bytes().endswith(b"half of the first")
    with Record(tmp_path) as second:
        second.append_facts([fact(2)])
    assert [row.at for row in reading.facts(tmp_path)] == [101.0, 102.0]


def test_damage_in_the_middle_is_not_passed_over(tmp_path: Path) -> None:
    with Record(tmp_path) as record:
        record.append_facts([fact(1), fact(2)])
        record.append_episodes([ended(1), ended(2)])
    path = tmp_path / "record" / "facts.jsonl"
    path.write_bytes(b"{broken\n" + path.read_bytes())
    with pytest.raises(RecordError, match=r"facts.jsonl: line 1 is no FactRow"):
        list(reading.facts(tmp_path))
    path = tmp_path / "record" / "episodes.msgpack"
    path.write_bytes(b"\x07" + path.read_bytes())
    with pytest.raises(RecordError, match="byte 0 starts no record: 7"):
        list(reading.episodes(tmp_path))


def test_a_file_shorter_than_its_position_is_refused(tmp_path: Path) -> None:
    with Record(tmp_path) as record:
        record.append_facts([fact(1)], last_seq=9)
    (tmp_path / "record" / "facts.jsonl").write_bytes(b"")
    with pytest.raises(RecordError, match="was cut or replaced"):
        Record(tmp_path)


def test_positions_never_go_back(tmp_path: Path) -> None:
    with Record(tmp_path) as record:
        record.append_facts([], last_seq=9)
        with pytest.raises(ValueError, match="position 8 is behind 9"):
            record.append_facts([fact(1)], last_seq=8)


def test_readers_drop_doubles_and_the_first_episode_counts(tmp_path: Path) -> None:
    with Record(tmp_path) as record:
        record.append_facts([fact(1), fact(1)])
        record.append_episodes([ended(1, "success"), msgspec.msgpack.encode(ended(1, "max_turns"))])
    assert len(list(reading.facts(tmp_path))) == 1
    assert [row.episode.end for row in reading.episodes(tmp_path)] == ["success"]


def test_rows_read_back_as_they_were_sent(tmp_path: Path) -> None:
    step = Step(
        run_id="r",
        kind="step",
        incarnation=2,
        step=5,
        version=5,
        groups=(
            GroupOutcome(group_id="g", admission=3, trained=(0, 2), rejected=((1, "infra"),), rejected_tokens=(12,)),
        ),
        metrics={"reward/mean": 0.25, "grad_norm": float("nan")},
        at=12.5,
    )
    with Record(tmp_path) as record:
        record.append_steps([step], last_seq=1)
        record.append_metrics([{"at": 1.0, "actor": "learner", "tokens_total": 5.0}])
    (row,) = reading.steps(tmp_path)
    wanted = Outcome(group_id="g", admission=3, trained=(0, 2), rejected=((1, "infra"),), rejected_tokens=(12,))
    assert row.groups == (wanted,)
    assert row.metrics == {"reward/mean": 0.25, "grad_norm": None}
    assert (row.incarnation, row.step, row.version, row.at) == (2, 5, 5, 12.5)
    assert list(reading.metrics(tmp_path)) == [{"at": 1.0, "actor": "learner", "tokens_total": 5.0}]
    assert json.loads((tmp_path / "record" / "position.json").read_text())[STEPS]["seq"] == 1


def test_a_row_of_before_tokens_were_counted_is_read(tmp_path: Path) -> None:
    group = {"group_id": "g", "admission": 3, "trained": [0], "rejected": [[1, "infra"]]}
    row = {"kind": "step", "incarnation": 0, "step": 1, "version": 1, "groups": [group], "metrics": {}, "at": 1.0}
    (tmp_path / "record").mkdir()
    (tmp_path / "record" / "steps.jsonl").write_text(json.dumps(row) + "\n")
    (read,) = reading.steps(tmp_path)
    assert read.groups[0].rejected == ((1, "infra"),) and read.groups[0].rejected_tokens == ()


def test_the_ledger_of_a_folder(tmp_path: Path) -> None:
    admitted = {"group_id": "g", "admission": 0, "size": 2, "task_id": "t", "level": 1, "role": "generator"}
    outcome = GroupOutcome(group_id="g", admission=0, trained=(0,), rejected=((1, "infra"),))
    with Record(tmp_path) as record:
        record.append_facts([Fact(run_id="r", kind="admitted", actor="sampler", at=1.0, data=admitted)])
        record.append_steps([Step(run_id="r", kind="incarnation", incarnation=1, step=0, version=0)])
        assert reading.ledger(tmp_path).episodes.line() == "2 submitted = 0 trained + 0 rejected + 2 pending"
        record.append_steps([Step(run_id="r", kind="step", incarnation=1, step=1, version=1, groups=(outcome,))])
        assert reading.ends(tmp_path) is None
        assert reading.ledger(tmp_path).balanced
        record.append_episodes([Ended(run_id="r", episode=tombstone("g", 1, "t", "infra"), admission=0, size=2)])
        assert reading.ledger(tmp_path).problems == ("episode g/0 was trained, but never ended",)
        first = Episode(group_id="g", index=0, task_id="t", end="success")
        record.append_episodes([Ended(run_id="r", episode=first, admission=0, size=2)])
    assert reading.ledger(tmp_path).balanced


def test_a_folder_without_a_record_is_refused_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="no such run folder"):
        reading.run_folder(tmp_path / "nowhere")
    with Record(tmp_path / "demo") as record:
        record.append_facts([fact(1)])
    with pytest.raises(RecordError, match="runs in it: demo"):
        reading.run_folder(tmp_path)
    assert reading.run_folder(tmp_path / "demo") == tmp_path / "demo"
