"""Messages between host and executor: what was sent arrives, what is no message is told apart from silence."""

import math
import socket
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.evaluation.link import MAX_MESSAGE_BYTES, Garbled, Link, LinkClosed, decode, encode

leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
leaves |= st.complex_numbers(allow_nan=False) | st.builds(range, st.integers(0, 9), st.integers(0, 9), st.just(2))
trees = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=4) | st.integers(0, 99), inner, max_size=3)
    ),
    max_leaves=12,
)


def refuse(value: Any) -> Any:
    raise ValueError(f"kind {value[0]}")


@given(trees)
def test_values_arrive_as_they_were(value: Any) -> None:
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(encode(value, lambda part: None)))
    back = decode(sent, refuse)
    assert back == value and repr(back) == repr(value)


def test_what_is_unknown_is_left_to_the_callers_own_kinds() -> None:
    class Own:
        pass

    with pytest.raises(TypeError, match="Own can't be passed on"):
        encode([Own()], lambda part: None)
    sent = encode([Own(), (1, math.pi)], lambda part: ["own"] if isinstance(part, Own) else None)
    assert decode(sent, lambda value: value[0].upper()) == ["OWN", (1, math.pi)]
    with pytest.raises(ValueError, match="kind zz"):
        decode(["l", ["zz", 1]], refuse)


@pytest.fixture
def ends() -> Iterator[tuple[Link, socket.socket]]:
    """A link, and the bare other end."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Link(ours), theirs


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "little") + body


GARBAGE = {
    "no MessagePack": framed(b"\xc1"),
    "cut short inside": framed(msgspec.msgpack.encode(["op", "x"])[:-1]),
    "two values": framed(msgspec.msgpack.encode(["op"]) * 2),
    "nothing": framed(b""),
    "a number": framed(msgspec.msgpack.encode(7)),
    "a map": framed(msgspec.msgpack.encode({"op": 1})),
    "an empty message": framed(msgspec.msgpack.encode([])),
    "deeper than Python": framed(b"\x91" * 200_000 + b"\xc0"),
    "larger than any": (MAX_MESSAGE_BYTES + 1).to_bytes(4, "little"),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_is_told_apart_from_silence(ends: tuple[Link, socket.socket], name: str) -> None:
    link, other = ends
    sender = threading.Thread(target=other.sendall, args=(GARBAGE[name],))
    sender.start()
    with pytest.raises(Garbled):
        link.receive()
    sender.join()


@pytest.mark.parametrize("sent", [b"", b"\x05", framed(b"\x91")[:-1] + b"", (99).to_bytes(4, "little") + b"x"])
def test_an_end_in_the_middle_is_an_end(ends: tuple[Link, socket.socket], sent: bytes) -> None:
    link, other = ends
    other.sendall(sent)
    other.close()
    with pytest.raises(LinkClosed):
        link.receive()


def test_posts_leave_with_the_next_question_in_order(ends: tuple[Link, socket.socket]) -> None:
    link, other = ends
    answers = []

    def serve() -> None:
        far = Link(other)
        answers.extend(far.receive() for _ in range(3))
        far.post("ok", len(answers))
        far.flush()

    server = threading.Thread(target=serve)
    server.start()
    link.post("free", [2, 4])
    link.post("grow", 2, 64)
    assert link.ask("op", "aten::add") == ["ok", 3]
    server.join()
    assert answers == [["free", [2, 4]], ["grow", 2, 64], ["op", "aten::add"]]


def test_writing_to_a_dead_end_says_so(ends: tuple[Link, socket.socket]) -> None:
    link, other = ends
    other.close()
    link.post("op")
    with pytest.raises(LinkClosed):
        link.flush()


@pytest.mark.parametrize("unread", [False, True])
@pytest.mark.parametrize("half", [b"", b"\x05", b"\x05\0\0\0ab"])
def test_a_process_that_goes_at_any_moment_has_closed_its_link(unread: bool, half: bytes) -> None:
    """With a message unread it resets the connection instead of ending it."""
    ours, theirs = socket.socketpair()
    one = Link(ours)
    one.post("import", "source")
    if unread:
        one.flush()
    theirs.sendall(half)
    theirs.close()
    with pytest.raises(LinkClosed):
        one.receive()
