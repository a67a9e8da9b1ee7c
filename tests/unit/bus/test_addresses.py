"""What can't be a server's address is refused at once; one that does not answer is named while it is tried."""

import asyncio
import contextlib
import re
import socket
import tempfile

import pytest
import structlog

from bus.address import check_url, shown
from bus.broker import Unreachable
from bus.connection import Connection
from bus.server import EmbeddedServer


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("garbage", "neither a scheme nor a port"),
        ("4222", "neither a scheme nor a port"),
        ("nats:/broker:4222", "neither a scheme nor a port"),
        ("$NATS:1", "no name of a host"),
        ("", "it names no host"),
        ("   ", "it is empty"),
        ("nats://bro ker:4222", "white space"),
        ("nats://broker:4222\n", "white space"),
        ("nats://", "names no host"),
        ("nats://:4222", "names no host"),
        ("nats://.", "no name of a host"),
        ("nats://-x:1", "no name of a host"),
        (f"nats://{'a' * 64}:1", "no name of a host"),
        ("nats://a:1,nats://b:2", "its port is no number"),
        ("nats://x:y", "its port is no number"),
        ("nats://x:70000", "its port is no number up to 65535"),
        ("nats://x:0", "port 0 is none"),
        ("nats://[::1", "its host is no address"),
        ("http://x:4222", "no scheme 'http'"),
        ("/run/nats.sock", "names no host"),
        ("nats://@x:4222", "no user or token before its @"),
        ("nats://x:4222/jetstream", "goes on behind the port"),
        ("nats://x:4222?tls=1", "goes on behind the port"),
    ],
)
def test_no_address(url, why):
    with pytest.raises(Unreachable) as told:
        check_url(url)
    text = str(told.value)
    assert why in text and "\n" not in text
    assert re.search(r"is not the address .*set NATS_URL \(or bus\.url\) to nats://HOST:PORT", text)


@pytest.mark.parametrize(
    "url",
    ["nats://broker", "nats://broker:4222/", "broker:4222", "tls://a.b-c.example.", "ws://x/nats", "nats://10.0.0.1:1",
     "nats://[::1]:4222", "nats://my_broker:4222", "nats://user:word@x:4222", "nats://t0ken@x"],
)  # fmt: skip
def test_what_may_be_one_is_tried(url):
    check_url(url)


def test_what_authorizes_is_in_no_message():
    assert shown("nats://user:word@x:4222") == "nats://***@x:4222" and shown("x:1") == "x:1"
    with pytest.raises(Unreachable) as told:
        check_url("http://user:pass@x:4222")
    assert "pass" not in str(told.value)


@contextlib.contextmanager
def nobody():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"nats://127.0.0.1:{taken.getsockname()[1]}"


@contextlib.contextmanager
def silent():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield f"nats://127.0.0.1:{taken.getsockname()[1]}"


@contextlib.contextmanager
def not_by_this_scheme():
    with tempfile.TemporaryDirectory() as folder:
        server = EmbeddedServer(folder)
        server.start()
        yield server.url.replace("nats://", "ws://")
        server.stop()


@pytest.mark.parametrize(
    ("there", "why"), [(nobody, "refused"), (silent, "nothing came back"), (not_by_this_scheme, "Bad status line")]
)
def test_a_server_that_does_not_answer_is_named_while_it_is_tried(monkeypatch, there, why):
    monkeypatch.setattr("bus.connection._TOLD_AFTER_S", 0.1)
    end = pytest.raises(Unreachable, match=r"could not be reached within 0\.4 s")
    with there() as url, structlog.testing.capture_logs() as logs, end as told:
        asyncio.run(Connection.open(url, "", name="x", deadline_s=0.4))
    (trying,) = [log for log in logs if log["event"] == "bus.trying"]
    assert trying["url"] == url and why in trying["error"] and len(trying["error"]) <= 120
    assert re.fullmatch(r"\d\d:\d\d:\d\d", trying["until"]) and "\n" not in str(told.value) + trying["error"]


def test_it_is_told_within_two_seconds_and_not_where_the_end_comes_first():
    from bus import connection

    assert connection._TOLD_AFTER_S < 2
    with nobody() as url, structlog.testing.capture_logs() as logs, pytest.raises(Unreachable):
        asyncio.run(Connection.open(url, "", name="x", deadline_s=0.2))
    assert logs == []


@pytest.mark.parametrize(
    ("before", "which"), [("", "connections without a token"), ("who:word@", "what stands before its @")]
)
def test_credentials_that_lack_or_are_wrong_are_told_at_once(tmp_path, before, which):
    server = EmbeddedServer(tmp_path)
    server.start()
    try:
        with pytest.raises(Unreachable, match=f"refuses {which}: set NATS_TOKEN") as told:
            asyncio.run(Connection.open(server.url.replace("//", f"//{before}"), "", name="x", deadline_s=3600.0))
        assert "word" not in str(told.value)
    finally:
        server.stop()


def test_a_broker_that_comes_back_is_told_once_with_how_long_it_was_away(tmp_path):
    server = EmbeddedServer(tmp_path)
    server.start()

    async def main():
        connection = await Connection.open(server.url, server.token, name="x", deadline_s=30.0)
        for times in (1, 2):
            server.kill()
            await asyncio.sleep(0.3)
            server.start()
            async with asyncio.timeout(30):
                while connection.generation < times:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        await connection.close()

    try:
        with structlog.testing.capture_logs() as logs:
            asyncio.run(main())
    finally:
        server.stop()
    assert [log["event"] for log in logs] == ["bus.disconnected", "bus.reconnected"] * 2
    back = [log for log in logs if log["event"] == "bus.reconnected"]
    assert all(0 < log["away_s"] < 30 and log["url"] == server.url for log in back)
