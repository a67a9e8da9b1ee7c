"""What a watch makes of values, marks and outages."""

from bus.broker import Entry
from bus.watching import Watching


def alive(key: str, revision: int) -> Entry:
    return Entry(key=key, value=b"", revision=revision)


def end(key: str, revision: int) -> Entry:
    return Entry(key=key, value=None, revision=revision)


def test_an_end_is_told_once_and_only_of_known_keys():
    watching = Watching(ttl_s=5.0)
    assert watching.expired("k", 1, now=0.0) == []
    assert watching.value(alive("k", 2)) == [alive("k", 2)]
    assert watching.value(alive("k", 2)) == []
    assert watching.expired("k", 3, now=0.0) == [end("k", 3)]
    assert watching.deleted("k", 4) == []


def test_after_an_outage_owners_get_time_to_rewrite():
    watching = Watching(ttl_s=5.0)
    for revision, key in enumerate(("back", "gone", "left", "unmarked"), start=1):
        watching.value(alive(key, revision))
    watching.doubt(now=100.0)
    assert watching.expired("back", 11, now=100.0) == []
    assert watching.expired("gone", 12, now=100.0) == []
    assert watching.deleted("left", 13) == [end("left", 13)]
    assert watching.compared({"back"}, now=100.5) == []
    assert watching.next_due() == 105.0
    assert watching.value(alive("back", 14)) == [alive("back", 14)]
    assert watching.settle(now=104.9) == []
    assert watching.settle(now=105.0) == [end("gone", 12), end("unmarked", 4)]
    assert watching.settle(now=106.0) == []
    assert watching.next_due() == float("inf")
    assert watching.expired("back", 15, now=110.0) == [end("back", 15)]


def test_without_a_doubt_a_comparison_ends_what_vanished():
    watching = Watching(ttl_s=5.0)
    watching.value(alive("a", 1))
    watching.value(alive("b", 2))
    assert watching.compared({"b"}, now=0.0) == [end("a", 1)]
