"""What `up` says of its own troubles and of its end: a real supervisor, with a broker and no actors."""

import asyncio
import os
import signal
import socket

import pytest
import structlog

from bus.broker import Unreachable
from configs.load import ConfigError, load
from runners import local, supervise
from runners.local import refuse_another_run
from runners.logs import WORDS, told_to, words


def config_of(folder, *overrides):
    return load("configs/demo.toml", ["run.name=own", f"run.folder={folder}", "bus.port=0", *overrides])


class NoActors(local.LocalRun):
    def _actors(self):
        return []

    async def wait(self):
        await asyncio.sleep(3600)


def up(monkeypatch, config, wait):
    monkeypatch.setattr(supervise, "LocalRun", type("Run", (NoActors,), {"wait": wait}))
    return asyncio.run(asyncio.wait_for(supervise.supervise(config, ""), 60))


async def finishes(run):
    pass


async def gives_up(run):
    run.failed = "recorder-0 died 5 times in a row: No space left on device"


async def breaks(run):
    raise OSError(28, "No space left on device")


async def is_interrupted(run):
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.sleep(3600)


@pytest.mark.parametrize(
    ("wait", "code", "said"),
    [
        (finishes, 0, "finished; writing everything down"),
        (gives_up, 1, "stopping: recorder-0 died 5 times in a row: No space left on device"),
        (breaks, OSError, "stopping: [Errno 28] No space left on device"),
        (is_interrupted, 130, "stopped at step 0 of 48: `kernelmill up` with the same arguments"),
    ],
)
def test_only_a_run_that_finished_is_called_finished(tmp_path, monkeypatch, capsys, wait, code, said):
    if code is OSError:
        with pytest.raises(OSError, match="No space left"):
            up(monkeypatch, config_of(tmp_path), wait)
    else:
        assert up(monkeypatch, config_of(tmp_path), wait) == code
    out = capsys.readouterr().out
    assert said in out
    assert ("finished;" in out) == (code == 0)


def test_a_broker_that_dies_is_told_in_words(tmp_path, monkeypatch, capsys):
    connected, lost = asyncio.Event(), asyncio.Event()
    feed = supervise.View.feed

    def fed(view, event, now):
        feed(view, event, now)
        if event["type"] == "queues":
            connected.set()
        if {"supervisor", "broker"} <= {actor for _, actor, _ in view.state.errors}:
            lost.set()

    monkeypatch.setattr(supervise.View, "feed", fed)

    async def kill_the_broker(run):
        await connected.wait()
        os.kill(run._server.pid, signal.SIGKILL)
        await lost.wait()

    assert up(monkeypatch, config_of(tmp_path), kill_the_broker) == 0
    shown = capsys.readouterr()
    assert "trouble  supervisor  lost the connection to the broker at nats://127.0.0.1:" in shown.out
    assert "trouble  broker  the broker died, starting it again" in shown.out
    assert "bus." not in shown.out + shown.err and "[warning" not in shown.out + shown.err


def test_every_trouble_of_the_bus_has_words_and_logs_are_as_before_afterwards(capsys):
    heard = []
    log = structlog.get_logger()
    with told_to(heard.append):
        for name in WORDS:
            log.warning(name, url="nats://x", error="why")
        log.info("bus.reconnected")
        log.error("message refused", detail="torn")
    assert not capsys.readouterr().out
    assert [event["level"] for event in heard] == ["warning"] * len(WORDS) + ["error"]
    said = [words(event) for event in heard]
    assert said.pop() == "message refused: torn"
    assert all(
        not text.startswith("bus.") and "{" not in text and ("nats://x" in text or "why" in text) for text in said
    )
    log.warning("afterwards")
    assert "afterwards" in capsys.readouterr().out


def test_a_broker_that_can_t_be_reached_is_named(tmp_path, monkeypatch, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"nats://127.0.0.1:{taken.getsockname()[1]}"
        config = config_of(tmp_path, f"bus.url={url}", "bus.connect_s=1")
        with pytest.raises(Unreachable, match=f"^the nats-server at {url} could not be reached within 1 s") as caught:
            up(monkeypatch, config, NoActors.wait)
    assert "view" not in str(caught.value)
    assert f"stopping: the nats-server at {url} could not be reached" in capsys.readouterr().out


def test_the_run_s_own_broker_that_can_t_be_reached_is_no_matter_of_a_setting(tmp_path, monkeypatch):
    async def nobody(*_):
        raise Unreachable("nothing there")

    monkeypatch.setattr(supervise, "connect", nobody)
    with pytest.raises(
        Unreachable, match=r"^the run's own broker does not answer \(its log is .*nats-server\.log\): n"
    ):
        up(monkeypatch, config_of(tmp_path), NoActors.wait)


def test_a_renamed_run_folder_is_named_back_and_never_removed(tmp_path):
    first = NoActors(config_of(tmp_path), on_line=print)
    first.prepare()
    first.folder.root.rename(tmp_path / "own-moved")
    for more in ([], ["episodes.gamma=0.9"]):
        moved = config_of(tmp_path, "run.name=own-moved", *more)
        with pytest.raises(ConfigError) as caught:
            refuse_another_run(NoActors(moved, on_line=print).folder, moved)
        said = str(caught.value)
        assert f"rename the folder back to {tmp_path / 'own'} and go on with run.name = 'own'" in said
        assert "remove" not in said and "\n" not in said
    (tmp_path / "own").mkdir()
    with pytest.raises(ConfigError, match=r"own stands there as well.* in another run\.folder") as caught:
        refuse_another_run(NoActors(moved, on_line=print).folder, moved)
    assert "remove" not in str(caught.value)
    (tmp_path / "own").rmdir()
    (tmp_path / "own-moved").rename(tmp_path / "own")
    refuse_another_run(first.folder, config_of(tmp_path))


def test_another_config_is_not_answered_with_removal_first(tmp_path):
    first = NoActors(config_of(tmp_path), on_line=print)
    first.prepare()
    with pytest.raises(ConfigError, match=r"episodes\.gamma is .*; go on with its own .*, choose .*, or remove"):
        refuse_another_run(first.folder, config_of(tmp_path, "episodes.gamma=0.9"))
