"""The eval server's API over HTTP (aiohttp): reads requests, asks the desk, writes answers. docs/gateway.md has it all.

Nothing here waits on anything but the network and the desk, so /health answers while every evaluator is busy. A handler
goes on when its client has gone: what it waits for is shared, and its answer is cached for whoever asks next.

A client may send any `original_model_src`, and evaluators run references as their own code. So whoever may post here
can run programs as the evaluators' user: without a token the server listens on loopback only, and requests that a web
page makes are refused (they carry `Origin`, or no JSON content type).
"""

import asyncio
import hmac
import ipaddress
import socket
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import structlog
from aiohttp import web

from actors import eval_info
from actors.eval_api import RETRY_S, Answer, BadRequest, EvalRequest, read_batch, read_id, read_request
from actors.eval_connection import Connection, Unread, json_answer, unreadable
from actors.eval_desk import Desk, Full
from actors.fault_book import FaultBook
from bus.broker import BusError, TooLarge
from bus.server import BusyPort
from configs.load import ConfigError

log = structlog.get_logger()
BODY_S = 30.0
"""A body that takes longer to arrive is refused."""
WRITE_S = 60.0
"""A reader of a stream that takes nothing for this long is cut off."""
BATCH_SIZE = 4
"""A batch's body may be as large as so many single ones."""
OPEN = ("/", "/health")
"""Answered without a token: what a load balancer asks."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def listen(host: str, port: int, token: str) -> socket.socket:
    """A listening socket (port 0 takes a free one). Raises ConfigError for an address that is not to be used without a
    token or is not this machine's, BusyPort when somebody else has it."""
    if not token and not _is_loopback(host):
        raise ConfigError(
            f"gateway.host = {host!r} is reachable from elsewhere, and whoever reaches it can run code here: "
            "set KERNELMILL_GATEWAY_TOKEN to a secret that clients send as bearer token, or listen on 127.0.0.1"
        )
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        taken = socket.socket(family, socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:
        raise ConfigError(f"gateway.host = {host!r}: {error}; wanted an address of this machine") from None
    try:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(address)
        taken.listen(1024)
    except PermissionError:
        raise ConfigError(f"gateway.port = {port}: this user may not listen there; use a port above 1023") from None
    except OSError as error:
        taken.close()
        if error.errno == 98:  # EADDRINUSE
            raise BusyPort(port, "gateway.port (--port)") from None
        raise ConfigError(f"gateway.host = {host!r}: {error.strerror}; wanted an address of this machine") from None
    return taken


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class EvalServer:
    """One listening server in front of one desk.

    server = EvalServer(desk, book, token="", max_request_bytes=2**20)
    await server.start(listen("127.0.0.1", 18188, ""))
    await server.stop(grace_s=20)
    """

    def __init__(self, desk: Desk, book: FaultBook, *, token: str, max_request_bytes: int) -> None:
        self._desk = desk
        self._book = book
        self._token = token.encode()
        self._max_bytes = max_request_bytes
        self._leaving = False
        self.statuses: Counter[tuple[str, int]] = Counter()
        """(path, status) -> answers to /eval, and lines of /eval_batch."""
        self.seconds: defaultdict[str, float] = defaultdict(float)
        """path -> seconds that those took together."""
        app = web.Application(middlewares=[self._guard])
        app.add_routes(
            [
                web.get("/", self._info(eval_info.root)),
                web.get("/health", self._info(eval_info.health)),
                web.get("/gpu_status", self._info(eval_info.gpu_status)),
                web.get("/backend_info", self._info(eval_info.backend_info)),
                web.get("/fault_statistics", self._info(eval_info.fault_statistics)),
                web.get("/metrics", self._metrics),
                web.post("/eval", self._eval),
                web.post("/eval_batch", self._eval_batch),
                web.post("/reset_gpu/{device_id}", self._reset_gpu),
                web.post("/cleanup", self._info(eval_info.cleanup)),
                web.post("/reset_devices", self._info(eval_info.reset_devices)),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        self._listener: asyncio.Server | None = None

    async def start(self, listening: socket.socket) -> None:
        await self._runner.setup()
        server, unread = self._runner.server, Unread()
        assert server is not None
        self._listener = await asyncio.get_running_loop().create_server(
            lambda: Connection(server, unread), sock=listening, backlog=1024
        )

    async def stop(self, grace_s: float) -> None:
        """Refuse new work, let what is in hand end within `grace_s`, then close all connections."""
        self._leaving = True
        try:
            async with asyncio.timeout(grace_s):
                await self._desk.empty.wait()
        except TimeoutError:
            log.warning("answers were still waited for", requests=self._desk.taken)
        if self._listener is not None:
            self._listener.close()
        await self._runner.cleanup()

    # -- judging -----------------------------------------------------------------------------------------------------

    async def _eval(self, request: web.Request) -> web.StreamResponse:
        started = time.monotonic()
        try:
            wanted = read_request(await self._body(request, self._max_bytes), self._desk.judging.terms.backends)
            self._refuse_when_unready(1)
        except BadRequest as error:
            result = Answer(status=error.status, body={"detail": str(error)})
        except Full as full:
            result = Answer(status=503, body={"detail": str(full)}, retry_after_s=full.retry_after_s)
        else:
            try:
                result = await self._ask(wanted)
            finally:
                self._desk.leave()
        self._count("/eval", result, started)
        headers = {"Retry-After": str(result.retry_after_s)} if result.retry_after_s else None
        return json_answer(result.body, result.status, headers)

    async def _eval_batch(self, request: web.Request) -> web.StreamResponse:
        """Answers as NDJSON lines, in the order in which they come: {index, id, status, result | detail, ...}."""
        started = time.monotonic()
        try:
            bodies = read_batch(await self._body(request, BATCH_SIZE * self._max_bytes))
            if len(bodies) > self._desk.places:
                raise BadRequest(413, f"{len(bodies)} requests in a batch: at most {self._desk.places} fit")
            self._refuse_when_unready(len(bodies))
        except BadRequest as error:
            return json_answer({"detail": str(error)}, error.status)
        except Full as full:
            return json_answer({"detail": str(full)}, 503, {"Retry-After": str(full.retry_after_s)})
        left = len(bodies)
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        lines = [asyncio.create_task(self._line(index, body)) for index, body in enumerate(bodies)]
        try:
            await response.prepare(request)
            for next_line in asyncio.as_completed(lines):
                line, result = await next_line
                left -= 1
                self._desk.leave()
                self._count("/eval_batch", result, started)
                async with asyncio.timeout(WRITE_S):
                    await response.write(line)
            await response.write_eof()
        except (ConnectionError, TimeoutError):
            log.info("the reader of a batch has gone", unread=left)
        finally:
            for task in lines:
                task.cancel()  # ends the wait alone: judging belongs to the desk
            self._desk.leave(left)
        return response

    async def _line(self, index: int, body: bytes) -> tuple[bytes, Answer]:
        line: dict[str, Any] = {"index": index, "id": None}
        try:
            if len(body) > self._max_bytes:
                raise BadRequest(413, f"{len(body)} bytes in a request: at most {self._max_bytes}")
            wanted = read_request(body, self._desk.judging.terms.backends)
            line["id"] = wanted.id
            result = await self._ask(wanted)
        except BadRequest as error:
            line["id"] = read_id(body)
            result = Answer(status=error.status, body={"detail": str(error)})
        line["status"] = result.status
        if result.status == 200:
            line["result"] = result.body
        else:
            line |= result.body
            if result.retry_after_s:
                line["retry_after_s"] = result.retry_after_s
        return msgspec.json.encode(line) + b"\n", result

    def _refuse_when_unready(self, count: int) -> None:
        """Take `count` places at the desk, or raise Full."""
        if self._leaving:
            raise Full("this gateway is stopping", RETRY_S)
        if why := self._desk.judging.unready():
            raise Full(why, RETRY_S)
        self._desk.take(count)

    async def _ask(self, wanted: EvalRequest) -> Answer:
        try:
            return await self._desk.ask(wanted)
        except TimeoutError as error:
            told = f"no verdict yet: {error}; it is kept when it comes, so ask again"
            return Answer(status=503, body={"detail": told}, retry_after_s=RETRY_S)
        except TooLarge as error:
            return Answer(status=413, body={"detail": f"reference and candidate are too large for the bus: {error}"})
        except BusError as error:
            return Answer(status=503, body={"detail": f"the bus takes no work now: {error}"}, retry_after_s=RETRY_S)
        except Exception as error:
            log.error("request failed", exc_info=True)
            told = f"unexpected error, see the gateway's log: {type(error).__name__}"
            return Answer(status=500, body={"detail": told})

    async def _body(self, request: web.Request, limit: int) -> bytes:
        """The body of a JSON request. Raises BadRequest: 413 above `limit` bytes, 408 when it is slow, 400 when it is
        not what its headers say or breaks off."""
        if request.content_type != "application/json":
            raise BadRequest(422, f"content type {request.content_type!r}: send application/json")
        body = bytearray()
        try:
            async with asyncio.timeout(BODY_S):
                async for chunk in request.content.iter_any():
                    body += chunk
                    if len(body) > limit:
                        raise BadRequest(413, f"the body is larger than {limit} bytes")
        except TimeoutError:
            raise BadRequest(408, f"the body did not arrive within {BODY_S:.0f} s") from None
        except web.RequestPayloadError as error:
            raise BadRequest(400, f"the body can't be read: {unreadable(error)}") from None
        except ConnectionError:
            raise BadRequest(400, "the body broke off") from None  # nobody is there to read it
        return bytes(body)

    # -- everything else ---------------------------------------------------------------------------------------------

    def _info(self, describe: Callable[[Desk, FaultBook], dict[str, Any]]) -> Handler:
        async def handler(request: web.Request) -> web.StreamResponse:
            return json_answer(describe(self._desk, self._book))

        return handler

    async def _reset_gpu(self, request: web.Request) -> web.StreamResponse:
        text = request.match_info["device_id"]
        if not (text.isdecimal() and len(text) < 10) or int(text) >= len(self._book.names):
            known = len(self._book.names)
            return json_answer(
                {"detail": f"invalid device id {text!r}: evaluators are numbered from 0, {known} known"}, 400
            )
        probes, why = None, ""
        try:
            probes = await self._desk.judging.probe(int(text))
        except (TimeoutError, BusError) as error:
            why = f"no answer of a probe: {error}"
        return json_answer(eval_info.reset_gpu(self._book, int(text), probes, why))

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        text = eval_info.prometheus(self._desk, self._book, self.statuses, self.seconds)
        return web.Response(text=text, content_type="text/plain", charset="utf-8")

    def _count(self, path: str, result: Answer, started: float) -> None:
        self.statuses[path, result.status] += 1
        self.seconds[path] += time.monotonic() - started

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Who may ask; and every error as JSON with one line in `detail`."""
        if request.method == "POST" and "Origin" in request.headers:
            return json_answer({"detail": "requests made by web pages are not answered"}, 403)
        if self._token and request.path not in OPEN:
            given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
            if not hmac.compare_digest(given, b"Bearer " + self._token):
                return json_answer(
                    {"detail": "wanted the header Authorization: Bearer TOKEN"}, 401, {"WWW-Authenticate": "Bearer"}
                )
        try:
            return await handler(request)
        except web.HTTPException as error:
            headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else None
            return json_answer({"detail": _told(error, request)}, error.status, headers)
        except Exception as error:
            log.error("request failed", path=request.path, exc_info=True)
            return json_answer({"detail": f"unexpected error, see the gateway's log: {type(error).__name__}"}, 500)


def _told(error: web.HTTPException, request: web.Request) -> str:
    path = request.path[:100]
    if error.status == 405:
        return f"{request.method} {path}: wanted {error.headers['Allow']}"
    if error.status == 404:
        return f"no such path {path!r}: wanted /eval, or another that docs/gateway.md lists"
    return error.reason
