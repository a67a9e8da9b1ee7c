"""The table, its names, and what they are in the server's words."""

import pytest

from bus import subjects, topology
from bus.jetstream import bucket_config, consumer_config, stream_config
from bus.topology import topology as make

PAIRS = [("triton", "cpu"), ("triton", "h100"), ("cuda", "h100")]


@pytest.fixture
def table():
    return make("demo", device_classes=PAIRS, ack_wait_s=60, dead_after_s=7, max_worker_deaths=3)


SUBJECTS = {
    topology.REQUESTS: subjects.request("demo", "9f"),
    topology.EVALUATIONS: subjects.evaluate("demo", "triton", "h100", "c0"),
    topology.VERDICTS: subjects.verdict("demo", "c0"),
    topology.EPISODES: subjects.episode("demo", "9f", 3),
    topology.STEPS: subjects.step("demo"),
    topology.FACTS: subjects.fact("demo", "joined"),
    topology.BLOBS: subjects.blob("demo", "i1-v12"),
    topology.DEAD: subjects.dead("demo", "poison"),
}


@pytest.mark.parametrize("name", sorted(SUBJECTS))
def test_every_subject_goes_to_exactly_its_stream(table, name):
    takers = [s.name for s in table.streams if any(subjects.matches(p, SUBJECTS[name]) for p in s.subjects)]
    assert takers == [f"demo_{name}"]


def test_each_kind_of_work_has_exactly_one_consumer(table):
    for backend, device_class in PAIRS:
        subject = subjects.evaluate("demo", backend, device_class, "c0")
        takers = [c.name for c in table.consumers if subjects.matches(c.filter, subject)]
        assert takers == [subjects.evaluate_consumer(backend, device_class)]
    assert not [c for c in table.consumers if subjects.matches(c.filter, subjects.evaluate("demo", "cuda", "cpu", "c"))]


def test_what_the_table_promises(table):
    streams = {s.name.removeprefix("demo_"): s for s in table.streams}
    assert {n for n, s in streams.items() if s.work_queue} == {"REQUESTS", "EVALUATIONS"}
    assert {n for n, s in streams.items() if s.unique} == {"REQUESTS", "EVALUATIONS", "EPISODES"}
    assert {n for n, s in streams.items() if s.latest} == {"VERDICTS"}
    assert {n for n, s in streams.items() if s.max_age_s} == {"VERDICTS"}
    assert all(c.ack_wait_s == 60 for c in table.consumers)
    buckets = {"demo_policy": 0, "demo_actors": 7, "demo_held": 0, "demo_sampler": 0}
    assert {b.name: b.ttl_s for b in table.buckets} == buckets


def test_advisories_about_the_queues_are_dead_letters(table):
    [dead] = [s for s in table.streams if s.name == "demo_DEAD"]
    for queue in ("demo_REQUESTS", "demo_EVALUATIONS"):
        for kind in ("MAX_DELIVERIES", "MSG_TERMINATED"):
            subject = f"$JS.EVENT.ADVISORY.CONSUMER.{kind}.{queue}.rollout"
            assert any(subjects.matches(pattern, subject) for pattern in dead.subjects)
    assert topology.advisory(b"\x81\xa4type") is None


def test_a_run_without_evaluators_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        make("demo", device_classes=[], ack_wait_s=60, dead_after_s=7, max_worker_deaths=3)


@pytest.mark.parametrize(
    "call",
    [
        lambda: subjects.request("De mo", "9f"),
        lambda: subjects.request("a.b", "9f"),
        lambda: subjects.request("demo", ""),
        lambda: subjects.request("demo", "9f.*"),
        lambda: subjects.evaluate("demo", "triton", "h>", "c0"),
        lambda: subjects.fact("demo", "two words"),
        lambda: subjects.bucket_key("a..b"),
    ],
)
def test_parts_that_would_change_where_a_message_goes_are_refused(call):
    with pytest.raises(ValueError, match="can't"):
        call()


@pytest.mark.parametrize(
    ("pattern", "subject", "expected"),
    [
        ("a.b", "a.b", True),
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("a.*", "a.b.c", False),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        ("*.b", "a.b", True),
        ("a.b.c", "a.b", False),
        (">", "a", True),
    ],
)
def test_patterns(pattern, subject, expected):
    assert subjects.matches(pattern, subject) is expected


def test_streams_refuse_rather_than_forget(table):
    """Whatever is full makes its publisher wait; only verdicts, a cache, drop what is oldest."""
    for spec in table.streams:
        config = stream_config(spec)
        assert config["discard"] == ("old" if spec.latest else "new")
        assert config["discard_new_per_subject"] == spec.unique
        assert config["max_msgs_per_subject"] == (1 if spec.unique or spec.latest else -1)


def test_a_stream_that_is_unique_and_latest_makes_no_sense(table):
    with pytest.raises(ValueError, match="choose one"):
        stream_config(type(table.streams[0])(name="x", subjects=("x",), unique=True, latest=True))


def test_durations_become_nanoseconds(table):
    assert consumer_config(table.consumers[0])["ack_wait"] == 60_000_000_000
    assert bucket_config(table.buckets[1])["max_age"] == 7_000_000_000
