"""Work queues: pulling one delivery at a time, and answering for it.

A pull survives a broker restart (it is asked again at once), and a delivery that arrives for a caller who has gone is
put back at once instead of waiting for `ack_wait_s`.
"""

import asyncio
from collections.abc import Callable

import msgspec
from nats.aio.msg import Msg

from bus.connection import Connection, status
from bus.jetstream import call

MIN_FETCH_S, MAX_FETCH_S = 0.02, 5.0
_GRACE_S = 0.5
"""The server ends a pull on time; this much later we stop waiting for it to say so."""
_ANSWER_S = 10.0
_EXPIRED = "408"


class NatsDelivery:
    """One message in this process's hands; `bus.broker.Delivery`."""

    def __init__(self, connection: Connection, subject: str, data: bytes, reply: str) -> None:
        self._connection = connection
        self.subject = subject
        self.data = data
        self.reply = reply
        parts = reply.split(".")
        # $JS.ACK.<stream>.<consumer>.<deliveries>.<seq>.…, with domain and account before the stream in the long form.
        start = 2 if len(parts) == 9 else 4
        self.stream = parts[start]
        self.deliveries = int(parts[start + 2])
        self.seq = int(parts[start + 3])

    async def in_progress(self) -> None:
        """Starts `ack_wait_s` afresh. Not confirmed: while the connection is down it does nothing."""
        if self._connection.is_up:
            try:
                await self._connection.send(self.reply, b"+WPI")
            except Connection.lost:
                return

    async def ack(self) -> None:
        await self._answer(b"+ACK", "ack")

    async def nak(self, delay_s: float = 0.0) -> None:
        delay = b" " + msgspec.json.encode({"delay": round(delay_s * 1e9)}) if delay_s > 0 else b""
        await self._answer(b"-NAK" + delay, "nak")

    async def term(self) -> None:
        await self._answer(b"+TERM", "term")

    async def _answer(self, payload: bytes, name: str) -> None:
        await answer(self._connection, self.reply, payload, f"{name} of {self.stream} #{self.seq}")


async def answer(connection: Connection, reply: str, payload: bytes, what: str) -> None:
    """Say it and wait until the server has it. Raises TimeoutError; BusError when the consumer is gone."""
    deadline = asyncio.get_running_loop().time() + _ANSWER_S
    await connection.request(reply, payload, deadline=deadline, what=what)


class Puller:
    """The pulls of one connection from one consumer.

    Deliveries name the message's own subject and not the pull that they answer, and any delivery serves any pull. So
    they go to whoever waits longest, and one that comes when nobody waits is put back.
    """

    def __init__(self, connection: Connection, stream: str, consumer: str) -> None:
        self._connection = connection
        self._stream = stream
        self._consumer = consumer
        self._inbox = connection.new_inbox()
        self._listening: asyncio.Task | None = None
        self._waiting: list[_Pull] = []
        connection.on_lost(self._lost)

    async def fetch(self, timeout_s: float) -> NatsDelivery | None:
        """The next delivery, or None when there is none in time, or no connection."""
        loop = asyncio.get_running_loop()
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{self._consumer}"
        deadline = loop.time() + min(max(timeout_s, MIN_FETCH_S), MAX_FETCH_S)
        while await self._connection.wait_up(deadline):
            if self._listening is None:
                self._listening = asyncio.create_task(self._connection.listen(self._inbox, self._take))
            await asyncio.shield(self._listening)
            left_s = deadline - loop.time()
            if left_s < 0.001:
                break
            try:
                message = await self._pull(subject, left_s, deadline)
            except Connection.lost:
                continue
            if message is None:
                break
            code = status(message)
            if not code:
                return NatsDelivery(self._connection, message.subject, message.data, message.reply)
            # The consumer is gone (raises), or the server is busy or just coming up: look again.
            what = f"a delivery of {self._stream} for {self._consumer} (the server said {code})"
            await call(self._connection, f"CONSUMER.INFO.{self._stream}.{self._consumer}", {}, what)
            await asyncio.sleep(0.05)
        return None

    async def _pull(self, subject: str, left_s: float, deadline: float) -> Msg | None:
        pull = _Pull(deadline)
        self._waiting.append(pull)
        body = msgspec.json.encode({"batch": 1, "expires": round(left_s * 1e9)})
        try:
            async with asyncio.timeout_at(deadline + _GRACE_S):
                await self._connection.send(subject, body, reply=self._inbox)
                return await pull.answer
        except (TimeoutError, asyncio.CancelledError) as gone:
            pull.give_to(self._take_now)
            if isinstance(gone, TimeoutError):
                return None
            raise
        finally:
            self._waiting.remove(pull)

    async def _take(self, message: Msg) -> None:
        self._take_now(message)

    def _take_now(self, message: Msg) -> None:
        # A pull whose caller was just cancelled may still stand here.
        open_pulls = (pull for pull in self._waiting if not pull.answer.done())
        code = status(message)
        if code == _EXPIRED:
            # Some pull has run out: the one that was to run out first, unless it was answered or has gone.
            soon = asyncio.get_running_loop().time() + 0.02
            due = min(open_pulls, key=lambda pull: pull.deadline, default=None)
            if due is not None and due.deadline <= soon:
                due.answer.set_result(None)
        elif (longest := next(open_pulls, None)) is not None:
            longest.answer.set_result(message)
        elif not code:
            self._connection.put_back(message.reply)

    def _lost(self, reason: Exception) -> None:
        for pull in self._waiting:
            if not pull.answer.done():
                pull.answer.set_exception(reason)


class _Pull:
    """One pull that waits."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.answer: asyncio.Future[Msg | None] = asyncio.get_running_loop().create_future()

    def give_to(self, take: Callable[[Msg], None]) -> None:
        """The caller has gone: hand on what came at the same moment."""
        if self.answer.done() and not self.answer.cancelled() and self.answer.exception() is None:
            message = self.answer.result()
            if message is not None:
                take(message)
