"""One connection to a nats-server, made of nats-py's client and one inbox of our own.

Every question that is asked (publish, ack, read) gets a token; its answers come to one inbox and are handed to whoever
waits for that token. (Pulled deliveries don't name their question: `bus.delivery`.) Invariants:

- Nothing waits without a deadline, and a lost connection wakes all who wait: what may be asked again is asked again as
  soon as the server is back, instead of sitting its timeout out.
- Once connected, reconnecting never ends. When the server closes the connection for good (it refused something), every
  call raises ConnectionLost and the process is expected to end.

nats-py's own JetStream layer is not used: its pulls sit out a broker restart, hand messages to cancelled callers, and
its consumers drift silently.
"""

import asyncio
import itertools
import os
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any

import nats.errors
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg

from bus.address import check_url, shown
from bus.broker import BusError, ConnectionLost, Missing, NoConnection, Unreachable
from bus.payload import HEADERS

log = structlog.get_logger(__name__)

_GOODBYE_S = 5

_TOLD_AFTER_S = 1.0
"""A server that has not answered by then is named, and how long it will be tried."""

_OLDEST_SERVER = (2, 11)
"""Markers for expired keys and batched direct reads."""


class _Lost(Exception):
    """The connection broke while an answer was awaited; ask again."""


class Connection:
    """See the module. Made by `open`; used from one event loop."""

    def __init__(self) -> None:
        self._client = Client()
        self._url = ""
        self._tokens = itertools.count()
        self._waiters: dict[str, Callable[[Msg | Exception], None]] = {}
        self._inbox = ""
        self._inboxes: list[Any] = []
        self._up = asyncio.Event()
        self._away = False
        self._lost_at = 0.0
        self._closing = False
        self._fatal: BusError | None = None
        self._last_error: Exception | None = None
        self._unauthorized = asyncio.Event()
        self._background: set[asyncio.Future] = set()
        self._starting: set[asyncio.Task] = set()
        self._on_reconnect: list[Callable[[], None]] = []
        self._on_lost: list[Callable[[Exception], None]] = []
        self.generation = 0
        """Counts reconnects; whoever watches something looks again when it moves."""

    @classmethod
    async def open(cls, url: str, token: str, *, name: str, deadline_s: float) -> "Connection":
        """Connect, trying until `deadline_s`. Raises Unreachable; at once where trying again can't help."""
        check_url(url)
        self = cls()
        self._url = url = shown(given := url)
        connecting = asyncio.create_task(
            self._client.connect(
                servers=given,
                token=token or None,
                name=name,
                error_cb=self._error,
                disconnected_cb=self._disconnected,
                reconnected_cb=self._reconnected,
                closed_cb=self._closed,
                max_reconnect_attempts=-1,
                reconnect_time_wait=0.25,  # type: ignore[arg-type]
                connect_timeout=5,
                # A half-open connection is noticed after 20 to 30 s, not after four minutes.
                ping_interval=10,
                max_outstanding_pings=2,
            )
        )
        refused = asyncio.create_task(self._unauthorized.wait())
        try:
            await self._first_answer({connecting, refused}, deadline_s)
            if refused.done():
                which = "the token that was given" if token else "connections without a token"
                which = "what stands before its @" if "@" in url and not token else which
                raise Unreachable(
                    f"the nats-server at {url} refuses {which}: set NATS_TOKEN (or bus.token) to the one that it was "
                    f"started with; {name} did not connect"
                )
            if not connecting.done():
                error = _one_line(self._last_error) or "none"
                raise Unreachable(
                    f"the nats-server at {url} could not be reached within {deadline_s:g} s (last error: {error}): "
                    f"does one run there, and is NATS_URL (or bus.url) right? {name} did not connect"
                )
            await connecting
        finally:
            connecting.cancel()
            refused.cancel()
        version = self._client.connected_server_version
        if (version.major, version.minor) < _OLDEST_SERVER:
            await self._client.close()
            raise Unreachable(f"the nats-server at {url} is {version}; 2.11 or newer is needed")
        self._inbox = f"_INBOX.{secrets.token_hex(11)}."
        await self.listen(self._inbox + "*", self._answer)
        self._up.set()
        return self

    async def _first_answer(self, answers: set[asyncio.Task], deadline_s: float) -> None:
        """Until one of them is done, or `deadline_s` is over; a person who waits is told what for."""
        first_s = min(_TOLD_AFTER_S, deadline_s)
        done, _ = await asyncio.wait(answers, timeout=first_s, return_when=asyncio.FIRST_COMPLETED)
        left_s = deadline_s - first_s
        if done or left_s <= 0:
            return
        until = time.strftime("%H:%M:%S", time.localtime(time.time() + left_s))
        error = _one_line(self._last_error) or "nothing came back"
        log.warning("bus.trying", url=self._url, error=error, until=until, left_s=round(left_s))
        await asyncio.wait(answers, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)

    @property
    def max_message(self) -> int:
        """Largest payload in bytes; the server counts the headers too, and ends connections that exceed it."""
        return self._client.max_payload - HEADERS

    # Asking ----------------------------------------------------------------------------------------------------------

    async def request(
        self, subject: str, data: bytes, *, deadline: float, what: str, headers: dict[str, str] | None = None
    ) -> Msg:
        """One answer, asking again after a reconnect until `deadline` (loop time). Raises TimeoutError that says `what`
        was waited for, Missing, ConnectionLost."""
        answers = await self.collect(subject, data, lambda _: True, deadline=deadline, what=what, headers=headers)
        return answers[0]

    async def collect(
        self,
        subject: str,
        data: bytes,
        is_last: Callable[[Msg], bool],
        *,
        deadline: float,
        what: str,
        headers: dict[str, str] | None = None,
    ) -> list[Msg]:
        """All answers up to the one that `is_last`; otherwise as `request`. Starts over after a reconnect."""
        loop = asyncio.get_running_loop()
        nobody_until = 0.0
        while True:
            if not await self.wait_up(deadline):
                raise NoConnection(f"no connection to {self._url}: {what}")
            try:
                answers = await self.ask(subject, data, is_last, deadline=deadline, headers=headers)
            except _Lost:
                continue
            except TimeoutError:
                raise TimeoutError(f"no answer in time from {self._url}: {what}") from None
            if status(answers[0]) != "503":
                return answers
            # A server that just came back may take a moment until it serves its streams again.
            nobody_until = nobody_until or loop.time() + 1.0
            if loop.time() + 0.05 > min(nobody_until, deadline):
                raise Missing(f"nobody serves {subject!r}: {what}; was `ensure` called for this run?")
            await asyncio.sleep(0.05)

    async def ask(
        self,
        subject: str,
        data: bytes,
        is_last: Callable[[Msg], bool],
        *,
        deadline: float,
        headers: dict[str, str] | None = None,
    ) -> list[Msg]:
        """One try. Raises TimeoutError at `deadline` and `lost` when the connection breaks."""
        if self._starting:
            # What this question is about must not be missed by a subscription that was asked for before it.
            await asyncio.wait(self._starting)
        token = str(next(self._tokens))
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        answers: list[Msg] = []

        def take(answer: Msg | Exception) -> None:
            if isinstance(answer, Exception):
                if not done.done():
                    done.set_exception(answer)
                return
            answers.append(answer)
            if is_last(answer) and not done.done():
                done.set_result(None)

        self._waiters[token] = take
        try:
            async with asyncio.timeout_at(deadline):
                await self.send(subject, data, reply=self._inbox + token, headers=headers)
                await done
        except BaseException:
            if done.done() and not done.cancelled():
                done.exception()  # seen
            raise
        finally:
            self._waiters.pop(token, None)
        return answers

    async def send(self, subject: str, data: bytes, reply: str = "", headers: dict[str, str] | None = None) -> None:
        """Publish without waiting for anything; lost when the connection breaks at this moment."""
        self._check()
        task = asyncio.current_task()
        cancels = task.cancelling() if task else 0
        try:
            await self._client.publish(subject, data, reply=reply, headers=headers)
        except (nats.errors.OutboundBufferLimitError, nats.errors.ConnectionClosedError):
            self._check()
            raise _Lost from None
        # nats-py swallows a cancellation that arrives while it flushes a full buffer.
        if task and task.cancelling() > cancels:
            raise asyncio.CancelledError

    @property
    def is_up(self) -> bool:
        return self._up.is_set() and self._client.is_connected

    lost = _Lost

    async def wait_up(self, deadline: float) -> bool:
        """Wait for the connection; False when `deadline` (loop time) passes first."""
        while not self.is_up:
            self._check()
            if not self._client.is_connected:
                self._up.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._up.wait()
            except TimeoutError:
                return False
        self._check()
        return True

    def _check(self) -> None:
        if self._fatal is not None:
            raise self._fatal

    async def _answer(self, message: Msg) -> None:
        take = self._waiters.get(message.subject[len(self._inbox) :])
        if take is not None:  # else its asker has gone
            take(message)

    async def listen(self, inbox: str, callback: Callable[[Msg], Awaitable[None]]) -> None:
        """Everything sent to `inbox`, until and while this connection closes."""
        self._inboxes.append(await self._client.subscribe(inbox, cb=callback))

    def new_inbox(self) -> str:
        return f"_INBOX.{secrets.token_hex(11)}"

    def put_back(self, reply: str) -> None:
        """Give a delivery that nobody waits for to the next worker, as soon as can be."""
        if self._client.is_connected:
            work = asyncio.ensure_future(self._client.publish(reply, b"-NAK"))
            self._background.add(work)
            work.add_done_callback(self._background.discard)

    def on_lost(self, callback: Callable[[Exception], None]) -> None:
        """Called with `lost` when the connection broke, or with the reason when it is over for good."""
        self._on_lost.append(callback)

    # Subscriptions ---------------------------------------------------------------------------------------------------

    def subscribe(self, subject: str, callback: Callable[[Msg], Awaitable[None]]) -> "NatsSubscription":
        """Everything published on `subject` from now on; nats-py subscribes again after a reconnect."""
        self._check()
        start = asyncio.create_task(self._client.subscribe(subject, cb=callback))
        self._starting.add(start)
        start.add_done_callback(self._starting.discard)
        return NatsSubscription(self, start)

    # Life ------------------------------------------------------------------------------------------------------------

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        self._on_reconnect.append(callback)

    async def close(self) -> None:
        """Wake everybody who waits, put back what is still delivered, say goodbye."""
        if self._closing:
            return
        self._closing = True
        if self._fatal is None:
            self._fatal = ConnectionLost("the connection was closed here")
            self._wake_all(self._fatal)
        try:
            if self._client.is_connected:
                # The server stops delivering, what it had sent comes in and is put back, then it has all we said.
                async with asyncio.timeout(_GOODBYE_S):
                    await asyncio.gather(*(inbox.drain() for inbox in self._inboxes))
                    if self._background:
                        await asyncio.wait(self._background)
                    await self._client.flush(timeout=_GOODBYE_S)
        except (TimeoutError, nats.errors.Error, OSError) as error:
            log.warning("bus.unclean_close", error=str(error) or f"no goodbye within {_GOODBYE_S} s")
        await self._client.close()

    def _wake_all(self, error: Exception) -> None:
        for take in (*self._waiters.values(), *self._on_lost):
            take(error)

    async def _error(self, error: Exception) -> None:
        self._last_error = error
        if isinstance(error, nats.errors.AuthorizationError) or "authorization violation" in str(error).lower():
            self._unauthorized.set()
        if self._up.is_set() and not isinstance(error, (OSError, nats.errors.UnexpectedEOF)):
            log.warning("bus.error", error=str(error) or type(error).__name__, exc_info=_unexpected(error))

    async def _disconnected(self) -> None:
        # Not asked of `_up`: who asks between the break and this call has seen the break already, and cleared it.
        first, self._away = not self._away, True
        if first:
            self._lost_at = asyncio.get_running_loop().time()
        self._up.clear()
        self._wake_all(_Lost())
        if first and not (self._closing or self._client.is_closed):
            log.warning("bus.disconnected", url=self._url)

    async def _reconnected(self) -> None:
        if self._closing:  # nats-py ends a reconnect that it was in when it was closed, and would live on
            await self._client.close()
            return
        away_s = asyncio.get_running_loop().time() - self._lost_at if self._away else 0.0
        self._away = False
        self.generation += 1
        self._wake_all(_Lost())
        self._up.set()
        # As loud as the loss: who was told of that waits for this.
        log.warning("bus.reconnected", url=self._url, away_s=round(away_s, 1), times=self.generation)
        for callback in self._on_reconnect:
            callback()

    async def _closed(self) -> None:
        if self._fatal is None:
            self._fatal = ConnectionLost(f"the server at {self._url} closed this connection: {self._last_error}")
            log.error("bus.closed", url=self._url, error=str(self._last_error))
        self._wake_all(self._fatal)
        self._up.set()  # whoever waits for it finds out why


class NatsSubscription:
    """`stop` ends it."""

    def __init__(self, connection: Connection, start: asyncio.Task) -> None:
        self._connection = connection
        self._start = start
        self._stopped = False

    async def started(self) -> None:
        """Returns when the server was told."""
        await asyncio.shield(self._start)

    async def stop(self) -> None:
        """Ends it; once is enough and twice is harmless."""
        subscription = await self._start
        if self._connection._fatal is None and not self._stopped:
            self._stopped = True
            await subscription.unsubscribe()


def _one_line(error: Exception | None) -> str:
    """What a server that is none answers may be long, and a page."""
    known = isinstance(error, OSError) and (error.errno or 0) > 0
    text = os.strerror(error.errno) if known else " ".join(str(error or "").split())  # type: ignore[union-attr]
    return text if len(text) <= 120 else f"{text[:119]}…"


def status(message: Msg) -> str:
    """The server's status code, empty for an ordinary message."""
    return (message.headers or {}).get("Status", "") if not message.data else ""


def _unexpected(error: Exception) -> Exception | None:
    """Errors of our own callbacks are logged with their traceback, the network's with a line."""
    return None if isinstance(error, (nats.errors.Error, OSError, TimeoutError)) else error
