"""The wire's form: every message there and back, what is refused and why, and bytes that must not change."""

import json
from pathlib import Path

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus import codec
from bus.broker import TooLarge
from bus.messages import (
    ALL,
    SCHEMA,
    Beat,
    Blob,
    Claim,
    Cursor,
    Dead,
    Ended,
    Evaluation,
    Fact,
    GroupOutcome,
    Held,
    Judged,
    Message,
    Policy,
    Request,
    Step,
)
from core import columns
from core.episodes.episode import Episode, Turn
from core.evaluation.verdict import Verdict
from core.tasks.task import Task

GOLDEN = Path(__file__).parent / "golden_messages.json"
TASK = Task(task_id="starter/l1_relu", name="l1_relu", level=1, origin="starter", source="class Model: ...")
VERDICT = Verdict(candidate_key="c0ffee", kind="pass", compiled=True, correct=True, speedup=1.5, speedup_low=1.25)
TURN = Turn(
    index=0,
    prompt_ids=columns.pack("ids", [1, 2, 3]),
    completion_ids=columns.pack("ids", [4, 5]),
    logprobs=columns.pack("logprobs", [-0.5, -0.25]),
    versions=columns.pack("versions", [7, 8]),
    candidate="kernel",
    verdict=VERDICT,
    score=0.9,
)
EPISODE = Episode(group_id="9f", index=3, task_id=TASK.task_id, turns=(TURN,), end="success")

EXAMPLES: tuple[Message, ...] = (
    Request(run_id="r", trace="9f", group_id="9f", admission=4, task=TASK, size=8, seed=1, admitted_at=2.5),
    Evaluation(run_id="r", candidate_key="c0ffee", task=TASK, candidate="kernel", settings={"draws": 3}, asked_at=1.0),
    Judged(run_id="r", verdict=VERDICT, evaluator="evaluator-1"),
    Ended(run_id="r", episode=EPISODE, admission=4, size=8, generator="generator-1"),
    Claim(run_id="r", file="9f-3-ab.ended", sha256="ab", nbytes=9, admission=4, size=8, task_id=TASK.task_id),
    Step(
        run_id="r",
        kind="step",
        incarnation=1,
        step=5,
        version=5,
        groups=(GroupOutcome(group_id="9f", admission=4, trained=(0, 1), rejected=((2, "stale"),)),),
        metrics={"loss": 0.5},
        at=3.5,
    ),
    Fact(run_id="r", kind="joined", actor="learner", at=1.0, data={"pid": 7, "why": None}),
    Dead(
        run_id="r", stream="r_REQUESTS", subject="km.r.request.9f", reason="poison", deliveries=3, payload=b"\x00\xff"
    ),
    Policy(run_id="r", version=5, step=5, folder="weights/5", fingerprint="ab"),
    Beat(
        run_id="r",
        kind="generator",
        actor="generator-1",
        pid=9,
        host="h",
        at=1.0,
        held=(Held(stream="r_REQUESTS", seq=2, reply="$JS.ACK.x"),),
        gauges={"running": 3.0},
    ),
    Cursor(run_id="r", admissions=9, epoch=1, position=3, config_hash="cd", state={"order": [1, 2]}),
    Blob(run_id="r", name="i1-v12", number=0, count=2, data=b"\x00\xff"),
)
each = pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)


def test_there_is_an_example_of_every_message():
    assert [type(message) for message in EXAMPLES] == list(ALL)


@each
def test_a_message_comes_back_as_it_was(message):
    data = codec.encode(message)
    assert codec.decode(data) == message
    assert codec.decode(data, type(message)) == message


def as_lists(value):
    """Plain data with lists for tuples: MessagePack knows only one kind of sequence."""
    if isinstance(value, dict):
        return {key: as_lists(item) for key, item in value.items()}
    return [as_lists(item) for item in value] if isinstance(value, list | tuple) else value


@each
def test_the_msgpack_package_reads_it(message):
    plain = msgpack.unpackb(codec.encode(message))
    assert plain == as_lists(msgspec.to_builtins(message, builtin_types=(bytes,)))
    assert codec.peek(codec.encode(message)) == plain


@each
def test_the_bytes_on_the_wire_have_not_changed(message):
    """Old archives and older processes must stay readable. A change here is a new SCHEMA, or a new field at the end of
    its struct: then the new bytes stand behind the old ones, which still decode."""
    golden = [bytes.fromhex(text) for text in json.loads(GOLDEN.read_text())[type(message).__name__]]
    assert codec.encode(message) == golden[-1]
    for earlier in golden:
        assert codec.decode(earlier) == message


@each
def test_unknown_fields_are_ignored(message):
    plain = {**msgpack.unpackb(codec.encode(message)), "added_later": [1, {"x": b""}]}
    assert codec.decode(msgpack.packb(plain)) == message


@each
def test_a_cut_message_is_refused(message):
    data = codec.encode(message)
    for end in (0, 1, len(data) // 2, len(data) - 1):
        with pytest.raises(codec.Refused) as refused:
            codec.decode(data[:end])
        assert refused.value.reason == "malformed"


def changed(message: Message, **fields: object) -> bytes:
    return msgpack.packb({**msgpack.unpackb(codec.encode(message)), **fields})


@pytest.mark.parametrize(
    ("data", "reason", "detail"),
    [
        (changed(EXAMPLES[0], admission="four"), "wrong_type", r"\$\.admission"),
        (changed(EXAMPLES[2], verdict={"candidate_key": "x", "kind": "great"}), "wrong_type", "kind"),
        (changed(EXAMPLES[0], schema=SCHEMA + 1), "unknown_schema", f"speaks {SCHEMA}"),
        (changed(EXAMPLES[0], schema=SCHEMA + 1, admission="four"), "unknown_schema", f"schema {SCHEMA + 1}"),
        (changed(EXAMPLES[0], type="telegram"), "unknown_type", "telegram"),
        (changed(EXAMPLES[0], type=7), "wrong_type", r"\$\.type"),
        (msgpack.packb([1, 2]), "wrong_type", "not a message"),
        (msgpack.packb({"run_id": "r"}), "wrong_type", "type"),
        (b"\xc1", "malformed", "MessagePack"),
        (bytes(codec.MAX_BYTES + 1), "oversize", str(codec.MAX_BYTES)),
    ],
)
def test_what_can_not_be_used_is_refused_with_a_reason(data, reason, detail):
    with pytest.raises(codec.Refused, match=detail) as refused:
        codec.decode(data)
    assert refused.value.reason == reason


def test_another_class_than_asked_for_is_refused():
    with pytest.raises(codec.Refused, match="wanted 'step'") as refused:
        codec.decode(codec.encode(EXAMPLES[0]), Step)
    assert refused.value.reason == "other_type"


def test_columns_of_unequal_length_are_refused():
    turn = {**msgspec.to_builtins(TURN, builtin_types=(bytes,)), "logprobs": b"\x00" * 4}
    episode = {**msgspec.to_builtins(EPISODE, builtin_types=(bytes,)), "turns": [turn]}
    with pytest.raises(codec.Refused, match="2 completion tokens but 1 logprobs"):
        codec.decode(changed(EXAMPLES[3], episode=episode))


@pytest.mark.parametrize("column", ["prompt_ids", "completion_ids", "logprobs", "versions"])
@pytest.mark.parametrize("more", [1, 2, 3])
def test_columns_that_hold_part_of_a_token_are_refused(column, more):
    turn = msgspec.to_builtins(TURN, builtin_types=(bytes,))
    turn[column] += b"\x00" * more
    episode = {**msgspec.to_builtins(EPISODE, builtin_types=(bytes,)), "turns": [turn]}
    with pytest.raises(codec.Refused, match=rf"turn \d+: {column} holds \d+ bytes, wanted a multiple of 4") as refused:
        codec.decode(changed(EXAMPLES[3], episode=episode))
    assert refused.value.reason == "wrong_type"


def test_a_message_above_the_limit_is_not_encoded():
    with pytest.raises(TooLarge, match=r"type 'fact' has \d+ bytes, the bus takes 8000000"):
        codec.encode(Fact(run_id="r", kind="k", actor="a", at=0.0, data={"text": "x" * codec.MAX_BYTES}))


def test_what_is_not_a_message_is_not_encoded():
    with pytest.raises(TypeError, match="not a message of the bus"):
        codec.encode(TASK)  # type: ignore[arg-type]


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_decoded_but_never_crash(data):
    for read in (codec.decode, codec.peek):
        try:
            read(data)
        except codec.Refused as refused:
            assert refused.reason
