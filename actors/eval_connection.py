"""One client's connection: what is no HTTP, or breaks off, is answered with one line of JSON, as all other errors are.

aiohttp alone writes a trace to the terminal for every request that it can't read, and answers in plain text. Anybody
who reaches the port can send such requests as fast as they like, so their lines in the log are few.
"""

import asyncio
import re
from typing import Any

import msgspec
import structlog
from aiohttp import web
from aiohttp.http import RawRequestMessage
from aiohttp.http_exceptions import HttpProcessingError, InvalidURLError

from core.clock import Clock, SystemClock

log = structlog.get_logger()
SAID_S = 10.0
"""Requests that can't be read have one line in the log in so many seconds; it has the number of those before it."""
DETAIL = 200
"""Characters that are told of what could not be read."""
_BYTES = re.compile(r" (?:bytearray\()?b['\"]|\. Please install ")
"""Where aiohttp's words about what it got begin, or its advice, which is not for clients."""


def json_answer(body: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), status=status, headers=headers, content_type="application/json")


def unreadable(error: BaseException) -> str:
    """What is wrong with a request or a body, in one line: of aiohttp's own words those before the bytes it got."""
    if isinstance(error, InvalidURLError):
        return "its address is none"
    text = " ".join(str(error).split("\n\n")[0].split()).removeprefix("400, message: ")
    return _BYTES.split(text)[0].rstrip(":")[:DETAIL] or type(error).__name__


class Unread:
    """The log's lines about requests that can't be read: the first at once, then at most one in SAID_S."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._silent_until = self._clock.monotonic()
        self._unsaid = 0

    def say(self, detail: str, remote: str | None) -> None:
        now = self._clock.monotonic()
        if now < self._silent_until:
            self._unsaid += 1
            return
        log.warning("a request can't be read", detail=detail, remote=remote, unsaid=self._unsaid)
        self._silent_until, self._unsaid = now + SAID_S, 0


class Connection(web.RequestHandler):
    """What `loop.create_server` makes for each client."""

    def __init__(self, server: web.Server, unread: Unread) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), access_log=None)  # type: ignore[arg-type]
        self._unread = unread

    def data_received(self, data: bytes) -> None:
        """A body that turns to garbage ends at once: aiohttp tells nobody who waits for its rest."""
        super().data_received(data)
        waiting = self._current_request
        if waiting is None or not self._messages or waiting.content.is_eof():
            return
        if not isinstance(self._messages[-1][0], RawRequestMessage):
            waiting.content.set_exception(web.RequestPayloadError("its chunks are none"))

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer to what never became a request (400), or to a bug of ours. The connection ends with it."""
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun, another one can't be sent")
        if isinstance(exc, HttpProcessingError):
            told = f"no HTTP/1.1 request: {unreadable(exc)}"
            self._unread.say(told, request.remote)
        else:
            log.error("request failed", exc_info=exc)
            told = f"unexpected error, see the gateway's log: {type(exc).__name__}"
        answer = json_answer({"detail": told}, status)
        answer.force_close()
        return answer

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """What aiohttp refuses before a handler sees it (an `Expect` of no known kind) is JSON as well."""
        if isinstance(resp, web.HTTPException):
            resp = json_answer({"detail": resp.text or resp.reason}, resp.status)
        return await super().finish_response(request, resp, start_time)

    def log_exception(self, *args: Any, exc_info: Any = None, **more: Any) -> None:
        """What went wrong between two answers; a client that is gone or could not be read had its answer."""
        if not isinstance(exc_info, ConnectionError | web.RequestPayloadError):
            log.error("connection failed", detail=str(args[0]) if args else "", exc_info=exc_info)
