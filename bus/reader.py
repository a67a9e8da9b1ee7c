"""Logs, read by position: batches of standing messages straight from the stream, without a consumer on the server.

Nothing on the server remembers a reader, so there is nothing to lose in a restart. Waiting is done on the server's
announcements of what it stored (headers only); a reader looks again after a reconnect, and once a second in any case.
"""

import asyncio
from collections.abc import Callable
from datetime import datetime

import msgspec
from nats.aio.msg import Msg

from bus.changes import Changes
from bus.connection import Connection, NatsSubscription, status
from bus.jetstream import STORED
from bus.subjects import pattern

MAX_READ_BYTES = 32 * 1024 * 1024
"""The server cuts connections that have more than 64 MB outstanding."""
_ANSWER_S = 10.0
_LOOK_AGAIN_S = 1.0
_END, _NOTHING = "204", "404"


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """A standing message with its headers."""

    seq: int
    subject: str
    data: bytes
    at: float
    headers: dict[str, str]


class Reader:
    """Reads of one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._changes: dict[str, tuple[Changes, NatsSubscription]] = {}
        """Per stream: what it announced, and the subscription to that."""
        connection.on_reconnect(self._look_again)

    async def read(self, stream: str, from_seq: int, limit: int, timeout_s: float) -> list[Stored]:
        """Messages from `from_seq` on, waiting up to `timeout_s` for the first. Empty only when the server said so;
        TimeoutError when it can't be asked."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        changes = await self._announced(stream) if timeout_s > 0 else None
        while True:
            seen = changes.count if changes else 0
            found = await self._batch(stream, from_seq, limit, max(deadline, loop.time() + _ANSWER_S))
            left_s = deadline - loop.time()
            if found or changes is None or left_s <= 0:
                return found
            await changes.wait(seen, min(left_s, _LOOK_AGAIN_S))

    async def last(self, stream: str, subject: str) -> Stored | None:
        deadline = asyncio.get_running_loop().time() + _ANSWER_S
        what = f"the last message of {stream} on {subject}"
        answer = await self._connection.request(
            f"$JS.API.DIRECT.GET.{stream}.{subject}", b"", deadline=deadline, what=what
        )
        return None if status(answer) else _stored(answer)

    def subscribe(self, subject: str, callback: Callable[[str, bytes], None]) -> NatsSubscription:
        """Call back with (subject, data) for whatever is stored from now on in a log.

        This listens to the server's announcements and not to the subject itself: a message is shown to the subject's
        subscribers a little before it is stored (and also when it is then refused), so that one who subscribes and
        then looks what stands could miss it both times.
        """

        async def announced(message: Msg) -> None:
            _, stream, subject = message.subject.split(".", 2)
            headers = message.headers or {}
            if "Nats-Msg-Size" not in headers:
                callback(subject, message.data)
                return
            seq = int(headers["Nats-Sequence"])
            found = await self.read(stream, seq, 1, 0)
            if found and found[0].seq == seq:
                callback(subject, found[0].data)

        return self._connection.subscribe(f"{STORED}.*.{pattern(subject)}", announced)

    async def _batch(self, stream: str, from_seq: int, limit: int, deadline: float) -> list[Stored]:
        body = {"seq": max(from_seq, 1), "next_by_subj": ">", "batch": limit, "max_bytes": MAX_READ_BYTES}
        answers = await self._connection.collect(
            f"$JS.API.DIRECT.GET.{stream}",
            msgspec.json.encode(body),
            lambda answer: status(answer) != "",
            deadline=deadline,
            what=f"messages of {stream} from #{from_seq}",
        )
        end = status(answers.pop())
        if end not in (_END, _NOTHING):
            raise RuntimeError(f"reading {stream} from #{from_seq}: the server answered {end}")
        return [_stored(answer) for answer in answers]

    async def _announced(self, stream: str) -> Changes:
        if stream not in self._changes:
            changes = Changes()

            async def announced(message: Msg) -> None:
                changes.fire()

            self._changes[stream] = (changes, self._connection.subscribe(f"{STORED}.{stream}.>", announced))
        changes, subscription = self._changes[stream]
        await subscription.started()
        return changes

    def _look_again(self) -> None:
        for changes, _ in self._changes.values():
            changes.fire()


def _stored(message: Msg) -> Stored:
    headers = message.headers or {}
    return Stored(
        seq=int(headers["Nats-Sequence"]),
        subject=headers["Nats-Subject"],
        data=message.data,
        at=datetime.fromisoformat(headers["Nats-Time-Stamp"]).timestamp(),
        headers=headers,
    )
