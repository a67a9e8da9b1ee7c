"""What only a real connection can suffer."""

import asyncio
import os
import signal
import socket

import pytest
import uvloop

from bus.broker import BucketSpec, ConsumerSpec, StreamSpec, SubjectTaken, Topology, Unreachable
from bus.nats import NatsBroker
from bus.server import EmbeddedServer

TABLE = Topology(
    streams=(
        StreamSpec(name="n_LOG", subjects=("n.log.*",), unique=True),
        StreamSpec(name="n_JOBS", subjects=("n.job.*",), work_queue=True, unique=True),
    ),
    consumers=(ConsumerSpec(stream="n_JOBS", name="work", filter="n.job.*"),),
    buckets=(BucketSpec(name="n_keys"),),
)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = EmbeddedServer(tmp_path_factory.mktemp("nats"))
    server.start()
    yield server
    server.stop()


async def joined(server: EmbeddedServer, name: str = "test") -> NatsBroker:
    broker = await NatsBroker.connect(server.url, server.token, name=name)
    await broker.ensure(TABLE)
    return broker


def test_no_server_is_one_clear_error():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(
        Unreachable, match=rf"the nats-server at nats://127.0.0.1:{port} could not be reached within 0\.3 s"
    ):
        asyncio.run(NatsBroker.connect(f"nats://127.0.0.1:{port}", name="learner", deadline_s=0.3))


@pytest.mark.parametrize("token", ["", "wrong"])
def test_a_refused_token_is_told_at_once(server, token):
    which = "the token that was given" if token else "connections without a token"
    with pytest.raises(Unreachable, match=rf"refuses {which}: set NATS_TOKEN \(or bus\.token\)") as told:
        asyncio.run(NatsBroker.connect(server.url, token, name="learner", deadline_s=3600.0))
    assert "\n" not in str(told.value) and "wrong" not in str(told.value)


@pytest.mark.parametrize(
    "url", ["foo://x", "http://127.0.0.1:4222", "", "nats://", "nats://x:y", "nats://x:99999", "nats://x:0", "//x"]
)
def test_what_is_no_address_is_told_at_once(url):
    with pytest.raises(
        Unreachable, match=r"is not the address.*set NATS_URL \(or bus\.url\) to nats://HOST:PORT"
    ) as told:
        asyncio.run(NatsBroker.connect(url, name="learner", deadline_s=3600.0))
    assert "\n" not in str(told.value)


def test_an_address_may_leave_the_scheme_out(server):
    async def main() -> None:
        broker = await NatsBroker.connect(server.url.removeprefix("nats://"), server.token, name="learner")
        await broker.close()

    asyncio.run(main())


def test_a_server_that_comes_late_is_waited_for(tmp_path):
    late = EmbeddedServer(tmp_path / "nats")
    late.start()
    late.stop()  # its port is known now

    async def main() -> None:
        connecting = asyncio.create_task(NatsBroker.connect(late.url, late.token, name="early", deadline_s=30.0))
        await asyncio.sleep(0.2)
        late.start()
        await (await connecting).close()

    asyncio.run(main())
    late.stop()


def test_it_works_on_uvloop(server):
    async def main() -> None:
        broker = await joined(server)
        await broker.publish("n.job.uv", b"1")
        delivery = await broker.fetch("n_JOBS", "work")
        assert delivery is not None
        await delivery.ack()
        waiting = asyncio.create_task(broker.fetch("n_JOBS", "work"))
        await asyncio.sleep(0.05)
        waiting.cancel()
        await broker.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def test_a_frozen_server_ends_waits_in_time_and_loses_nothing(server):
    async def main() -> None:
        broker = await joined(server)
        os.kill(server.pid, signal.SIGSTOP)
        os.waitpid(server.pid, os.WUNTRACED)  # noqa: ASYNC222  (it stands still at once)
        try:
            with pytest.raises(TimeoutError, match=r"storing 1 bytes on n\.log\.frozen"):
                await broker.publish("n.log.frozen", b"1", timeout_s=0.3)
            assert await broker.fetch("n_JOBS", "work", 0.1) is None
        finally:
            os.kill(server.pid, signal.SIGCONT)
        # It was on its way: a caller that tries again itself finds its own message.
        with pytest.raises(SubjectTaken):
            await broker.publish("n.log.frozen", b"1")
        await broker.publish("n.job.after", b"")
        delivery = await broker.fetch("n_JOBS", "work")
        assert delivery is not None
        await delivery.ack()
        await broker.close()

    asyncio.run(main())


def test_who_watches_waits_for_a_frozen_server(server, monkeypatch):
    """For longer than any call waits for its answer: nothing that it is told by others would start it again."""
    monkeypatch.setattr("bus.reader._ANSWER_S", 0.3)

    async def main() -> None:
        broker = await joined(server)
        seen: asyncio.Queue[tuple[str, bytes | None]] = asyncio.Queue()

        async def watch() -> None:
            async for entry in broker.watch("n_keys"):
                seen.put_nowait((entry.key, entry.value))

        watching = asyncio.create_task(watch())
        await broker.put("n_keys", "a", b"before")
        assert await seen.get() == ("a", b"before")
        os.kill(server.pid, signal.SIGSTOP)
        os.waitpid(server.pid, os.WUNTRACED)  # noqa: ASYNC222
        await asyncio.wait({watching}, timeout=7.0)  # longer than it looks at the whole bucket once
        os.kill(server.pid, signal.SIGCONT)
        assert not watching.done(), watching
        await broker.put("n_keys", "a", b"after")
        assert await asyncio.wait_for(seen.get(), 30) == ("a", b"after")
        watching.cancel()
        await broker.close()

    asyncio.run(main())


def lost_connections(capsys) -> int:
    return capsys.readouterr().out.count("bus.disconnected")


def test_every_lost_connection_is_told_once_whoever_sees_it_first(tmp_path, capsys):
    """Readers that ask at every turn of the loop ask between the break and nats-py's word of it as well."""
    server = EmbeddedServer(tmp_path / "nats")
    server.start()

    async def main() -> None:
        broker = await joined(server)

        async def asks() -> None:
            while True:
                await broker._connection.wait_up(0.0)
                await asyncio.sleep(0)

        asking = asyncio.create_task(asks())
        for times in range(1, 4):
            server.kill()
            if times == 2:  # else it is back before this loop has met the end of the old one
                await asyncio.sleep(0.3)
            server.start()
            async with asyncio.timeout(30):
                while broker._connection.generation < times:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert lost_connections(capsys) == 1
        asking.cancel()
        await broker.close()
        assert lost_connections(capsys) == 0

    try:
        asyncio.run(main())
    finally:
        server.stop()


def test_large_publishes_can_be_cancelled_at_any_moment(server):
    """nats-py swallows a cancellation that arrives while it waits for its full buffer to drain."""

    async def main() -> None:
        broker = await joined(server)
        big = bytes(6_000_000)
        for i in range(12):
            task = asyncio.create_task(broker.publish(f"n.log.big-{i}", big, timeout_s=30.0))
            for _ in range(i):
                await asyncio.sleep(0)
            before_its_end = task.cancel()  # on a slow machine a publish is over after a few turns
            done, _ = await asyncio.wait({task}, timeout=10.0)
            assert done and task.cancelled() is before_its_end
        assert await broker.publish("n.log.after", b"") > 0
        await broker.close()

    asyncio.run(main())


def test_a_subscriber_that_raises_is_logged_and_does_not_stop_the_others(server, capsys):
    async def main() -> None:
        broker = await joined(server)
        seen: asyncio.Queue[str] = asyncio.Queue()

        def broken(subject: str, data: bytes) -> None:
            raise ZeroDivisionError(subject)

        broker.subscribe("n.log.*", broken)
        broker.subscribe("n.log.*", lambda subject, data: seen.put_nowait(subject))
        await broker.stream_state("n_LOG")
        for name in ("sub-1", "sub-2"):
            await broker.publish(f"n.log.{name}", b"")
        assert [await asyncio.wait_for(seen.get(), 10) for _ in range(2)] == ["n.log.sub-1", "n.log.sub-2"]
        await broker.close()

    asyncio.run(main())
    assert capsys.readouterr().out.count("ZeroDivisionError: n.log.sub-1") >= 1


def test_many_pulls_of_one_connection_share_the_work(server):
    async def main() -> None:
        broker = await joined(server)
        for i in range(64):
            await broker.publish(f"n.job.many-{i}", b"")
        deliveries = await asyncio.gather(*(broker.fetch("n_JOBS", "work", 1.0) for _ in range(80)))
        got = [delivery for delivery in deliveries if delivery is not None]
        assert len({delivery.seq for delivery in got}) == len(got) == 64
        assert all(delivery.deliveries == 1 for delivery in got)
        await asyncio.gather(*(delivery.ack() for delivery in got))
        await broker.close()

    asyncio.run(main())
