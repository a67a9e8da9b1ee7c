"""What is said of a broker that can't be one, that does not answer, and that comes back."""

import asyncio
import io
import json
import os
import re
import signal
import socket

import pytest
import structlog
from rich.console import Console

from bus.broker import Unreachable
from configs.load import load
from runners import actor_process, cli, local, logs, supervise
from runners.live import View
from runners.live_state import LiveState
from runners.run_actor import KINDS


def config_of(folder, *overrides):
    return load("configs/demo.toml", ["run.name=own", f"run.folder={folder}", "bus.port=0", *overrides])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("url", ["garbage", "http://broker:4222", "nats://broker:port"])
def test_no_actor_tries_what_is_no_address(tmp_path, monkeypatch, capsys, kind, url):
    async def never(*_):
        raise AssertionError

    monkeypatch.setattr(actor_process, "connect", never)
    monkeypatch.setenv("NATS_URL", url)
    assert cli.main(["run", kind, "--config", "configs/demo.toml", f"run.folder={tmp_path}"]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"kernelmill run: {url!r} is not the address") and len(told.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("url", ["garbage", "http://broker:4222"])
def test_nor_does_up(tmp_path, capsys, url):
    assert cli.main(["up", "configs/demo.toml", f"run.folder={tmp_path}", f"bus.url={url}"]) == 2
    told = capsys.readouterr().err
    assert f"{url!r} is not the address" in told and len(told.splitlines()) == 1


def test_a_log_has_a_sentence_beside_each_name(capsys):
    before = structlog.get_config()
    try:
        logs.configure(run="own", actor="sampler-0")
        log = structlog.get_logger()
        for name in logs.WORDS:
            log.warning(name, url="nats://x", error="why", until="12:00:00", away_s=3.2)
        log.warning("beat not stored", why="no")
    finally:
        structlog.configure(**before)
        structlog.contextvars.clear_contextvars()
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    *named, other = lines
    said = {line["event"]: line["said"] for line in named}
    assert said["bus.reconnected"] == "the broker at nats://x is back after 3.2 s"
    assert said["bus.trying"] == "the broker at nats://x does not answer yet (why); trying until 12:00:00"
    assert not any("{" in text or text.startswith("bus.") for text in said.values()) and "said" not in other


def test_a_person_who_watches_is_told_where_the_loss_was_told():
    out = io.StringIO()
    view = View(Console(file=out, width=100), LiveState())
    view.feed({"type": "error", "actor": "learner-0", "text": "lost the broker", "at": 1.0, "mended": False}, 1.0)
    view.feed({"type": "error", "actor": "learner-0", "text": "it is back", "at": 4.0, "mended": True}, 4.0)
    assert out.getvalue().splitlines() == [
        "trouble  learner-0  lost the broker",
        "mended   learner-0  it is back",
    ]
    from runners.live import render

    picture = io.StringIO()
    Console(file=picture, width=120, force_terminal=True, color_system="standard").print(render(view.state, 5.0))
    lost, back = (next(line for line in picture.getvalue().splitlines() if text in line) for text in
                  ("lost the broker", "it is back"))  # fmt: skip
    assert "\x1b[32m" in back and "\x1b[32m" not in lost


def supervised(monkeypatch, config, wait):
    class NoActors(local.LocalRun):
        def _actors(self):
            return []

    NoActors.wait = wait
    monkeypatch.setattr(supervise, "LocalRun", NoActors)
    return asyncio.run(asyncio.wait_for(supervise.supervise(config, ""), 60))


def test_up_tells_that_its_broker_is_back(tmp_path, monkeypatch, capsys):
    connected, back = asyncio.Event(), asyncio.Event()
    feed = supervise.View.feed

    def fed(view, event, now):
        feed(view, event, now)
        if event["type"] == "queues":
            connected.set()
        if event.get("mended"):
            back.set()

    monkeypatch.setattr(supervise.View, "feed", fed)

    async def kill_the_broker(run):
        await connected.wait()
        os.kill(run._server.pid, signal.SIGKILL)
        await back.wait()

    assert supervised(monkeypatch, config_of(tmp_path), kill_the_broker) == 0
    out = capsys.readouterr().out
    lost, back_again = (out.index(text) for text in ("lost the connection to the broker", "is back after"))
    assert lost < back_again
    found = re.findall(r"mended   supervisor  the broker at nats://127\.0\.0\.1:\d+ is back after [\d.]+ s", out)
    assert len(found) == 1, out


def test_up_tells_that_a_broker_is_being_tried(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("bus.connection._TOLD_AFTER_S", 0.1)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"nats://127.0.0.1:{taken.getsockname()[1]}"

        async def wait(_):
            await asyncio.sleep(60)

        with pytest.raises(Unreachable):
            supervised(monkeypatch, config_of(tmp_path, f"bus.url={url}", "bus.connect_s=0.5"), wait)
    said = rf"the broker at {url} does not answer yet \(Connect.*\); trying until \d\d:\d\d:\d\d"
    assert re.search(said, capsys.readouterr().out)
