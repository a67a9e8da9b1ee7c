"""What is no HTTP, or breaks off: one line of JSON for who sent it, no trace on the terminal, few lines in the log."""

import asyncio
import gzip
import socket

import msgspec
import pytest
import structlog
from aiohttp import web
from aiohttp.http_exceptions import BadStatusLine, InvalidURLError, LineTooLong

from actors.eval_connection import SAID_S, Unread, unreadable
from core.clock import ManualClock
from tests.unit.actors.gateway_scene import body, post, run, scene, until

POST = b"POST /eval HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
GET = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
NO_HTTP = {
    "a negative length": POST + b"Content-Length: -5\r\n\r\n",
    "a length of many digits": POST + b"Content-Length: 99999999999999999999999999\r\n\r\n{}",
    "two lengths": POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    "a length and chunks": POST + b"Content-Length: 2\r\n" + CHUNKED + b"{}",
    "words": b"hello there\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello\r\n\r\n",
    "a method of nobody": b"BREW /eval HTTP/1.1\r\nHost: x\r\n\r\n",
    "a method of 3000 letters": b"A" * 3000 + b" /eval HTTP/1.1\r\nHost: x\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a version of nobody": b"GET /health HTTP/3.7\r\n\r\n",
    "a long header": GET + b"A: " + b"a" * 20000 + b"\r\n\r\n",
    "many headers": GET + b"".join(b"A%d: x\r\n" % number for number in range(500)) + b"\r\n",
    "a long address": b"GET /" + b"a" * 20000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    "an address that is none": b"GET http://[::1/health HTTP/1.1\r\nHost: x\r\n\r\n",
    "a zero byte": GET + b"A: a\0b\r\n\r\n",
    "no host": b"GET /health HTTP/1.1\r\n\r\n",
    "lines without returns": b"GET /health HTTP/1.1\nHost: x\n\n",
    "an encoding that is not here": POST + b"Transfer-Encoding: gzip\r\n\r\n{}",
    "garbage behind a request": GET.replace(b"Connection: close\r\n", b"") + b"\r\ngarbage\r\n\r\n",
}
BAD_BODY = {
    "chunks that are none": [POST + CHUNKED + b"2\r\n{}\r\n", b"ZZ\r\n"],
    "gzip that is none": [POST + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}"],
    "deflate that is none": [POST + b"Content-Encoding: deflate\r\nContent-Length: 4\r\n\r\n\xff\xff{}"],
}
REFUSED = {
    417: POST + b"Expect: tea\r\nContent-Length: 2\r\n\r\n{}",
    404: b"OPTIONS * HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    405: b"PATCH /eval HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
}


async def verdicts(candidate):
    return {"kind": "pass", "compiled": True, "correct": True}


async def said(url, *parts, expect_answer=True):
    """What the server says before it closes. Each part goes when the one before has been read."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    for part in parts:
        writer.write(part)
        await writer.drain()
        await asyncio.sleep(0.05)
    answer = await reader.read()
    writer.close()
    return answer


def read(answer):
    """(status, header lines, JSON body) of the last answer of a connection."""
    head, _, rest = answer.rpartition(b"\r\n\r\n")
    lines = head.decode().rsplit("HTTP/1.", 1)[1].split("\r\n")
    return int(lines[0].split()[1]), lines[1:], msgspec.json.decode(rest)


def check_quiet(capfd, caplog):
    """Nothing of aiohttp's own on the terminal, and no trace."""
    out, err = capfd.readouterr()
    assert "Traceback" not in out + err and "rror handling" not in out + err
    assert not [record for record in caplog.records if record.name.startswith(("aiohttp", "asyncio"))]


@pytest.mark.parametrize(
    ("group", "status"), [(NO_HTTP, 400), (BAD_BODY, 400), *(({"": sent}, code) for code, sent in REFUSED.items())]
)
def test_every_kind_is_answered_with_a_line_of_json_and_no_trace(group, status, capfd, caplog):
    async def main():
        async with scene(verdicts) as (here, session):
            with structlog.testing.capture_logs() as logged:
                for how, sent in group.items():
                    answer = await said(here.url, *(sent if isinstance(sent, list) else [sent]))
                    got, headers, told = read(answer)
                    assert (how, got) == (how, status), told
                    assert "Content-Type: application/json" in headers, how
                    assert set(told) == {"detail"} and "\n" not in told["detail"], how
                    assert not [bad for bad in (" b'", "bytearray", "400, ") if bad in told["detail"]], told
                    assert len(told["detail"]) < 300, how
            assert {line["event"] for line in logged} <= {"a request can't be read"}
            assert (await post(session, "/eval", body("right")))[0] == 200
            assert here.desk.taken == 0

    run(main)
    check_quiet(capfd, caplog)


@pytest.mark.parametrize("start", [CHUNKED + b"10\r\n{", b"Content-Length: 100\r\n\r\n{"])
@pytest.mark.parametrize("path", [b"/eval", b"/eval_batch", b"/cleanup", b"/nothing"])
def test_a_client_that_hangs_up_within_its_body_leaves_no_trace(start, path, capfd, caplog):
    async def main():
        async with scene(verdicts) as (here, session):
            with structlog.testing.capture_logs() as logged:
                for reset in (False, True):
                    _, writer = await asyncio.open_connection("127.0.0.1", int(here.url.rpartition(":")[2]))
                    writer.write(POST.replace(b"/eval", path).replace(b"Connection: close\r\n", b"") + start)
                    await writer.drain()
                    await asyncio.sleep(0.05)
                    if reset:
                        how = (1).to_bytes(4, "little") + bytes(4)  # linger 0: RST in place of FIN
                        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, how)
                    writer.close()
                await until(lambda: not here.server._runner.server.connections)
            assert logged == [] and here.desk.taken == 0
            assert (await post(session, "/eval", body("right")))[0] == 200

    run(main)
    check_quiet(capfd, caplog)


def test_old_and_impatient_clients_are_answered():
    async def main():
        async with scene(verdicts) as (here, _):
            text = msgspec.json.encode(body("right"))
            length = f"Content-Length: {len(text)}\r\n\r\n".encode()
            old = await said(here.url, POST.replace(b"HTTP/1.1\r\nHost: x", b"HTTP/1.0") + length + text)
            assert old.startswith(b"HTTP/1.0 200") and read(old)[2]["correctness"] is True
            both = await said(
                here.url,
                GET.replace(b"Connection: close\r\n", b"") + b"\r\n" + POST + length + text,
            )
            assert both.count(b"HTTP/1.1 200 OK") == 2 and read(both)[2]["correctness"] is True
            waited = await said(here.url, POST + b"Expect: 100-continue\r\n" + length, text)
            assert waited.startswith(b"HTTP/1.1 100 Continue") and read(waited)[2]["correctness"] is True
            packed = gzip.compress(text)
            length = f"Content-Encoding: gzip\r\nContent-Length: {len(packed)}\r\n\r\n".encode()
            assert read(await said(here.url, POST + length + packed))[2]["correctness"] is True

    run(main)


def test_a_flood_has_few_lines():
    clock = ManualClock()
    unread = Unread(clock)
    with structlog.testing.capture_logs() as logged:
        for _ in range(1000):
            unread.say("no HTTP", "127.0.0.1")
        clock.advance(SAID_S)
        unread.say("no HTTP", "127.0.0.1")
    assert [line["unsaid"] for line in logged] == [0, 999]


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (BadStatusLine(error="Bad line:\n  Invalid version:\n\n  b'GET'\n    ^"), "Bad line: Invalid version"),
        (LineTooLong(b"a" * 100, 8190), "Got more than 8190 bytes when reading"),
        (LineTooLong(bytearray(b"a"), 8190), "Got more than 8190 bytes when reading"),
        (InvalidURLError("http://[::1"), "its address is none"),
        (web.RequestPayloadError("400, message:\n  Can not decode: br. Please install `Brotli`"), "Can not decode: br"),
        (web.RequestPayloadError(), "RequestPayloadError"),
    ],
)  # fmt: skip
def test_what_aiohttp_says_is_one_line_without_bytes(error, line):
    assert unreadable(error) == line
