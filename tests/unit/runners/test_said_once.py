"""What a run has to say it says once: whatever meets many actors at once, whatever is in a log and a fact as well, and
the end. With a real supervisor, real processes and a real broker where it is about them."""

import asyncio
import io
import os
import signal
from collections import Counter

import msgspec
import pytest
from rich.console import Console

from actors.checkpointer import Checkpointer
from bus import facts
from bus.memory import MemoryBroker
from bus.memory_server import MemoryServer
from bus.messages import Request
from bus.run_bus import RunBus
from bus.topology import topology
from bus.worker import Worker
from configs.load import load
from core.clock import SystemClock
from core.record.record import Record
from core.run_folder import RunFolder
from runners import inspect, local, logs, supervise
from runners.live import View
from runners.live_state import LiveState
from runners.processes import Child
from runners.troubles import OF_ALL, OF_ALL_EVERY_S, Troubles

HANGS_S = 10.0
"""Longer than who waits for news waits for an answer."""
ACTORS = [f"actor-{n}" for n in range(7)]


class Seen:
    """A view where no picture is drawn, fed as `up` feeds it."""

    def __init__(self, **run):
        self.out, self.now = io.StringIO(), 1000.0
        self.view = View(Console(file=self.out, width=200), LiveState())
        self.view.feed({"type": "run", "name": "own", "steps": 9, "started_at": 1.0, **run}, self.now)
        self.troubles = Troubles(lambda event: self.view.feed(event, self.now), lambda: self.now)

    def log(self, actor, event, level="warning", **fields):
        self.troubles.take(actor, {"event": event, "level": level, **fields})

    @property
    def lines(self):
        return self.out.getvalue().splitlines()


def test_a_broker_s_loss_is_told_once_and_its_return_when_all_have_it():
    seen = Seen()
    for outage in range(2):
        for actor in ACTORS:
            seen.log(actor, "bus.disconnected", url="nats://x")
        seen.log("actor-6", "died (signal SIGKILL), starting it again (restarts: 1)", why="")
        for actor in ACTORS[:6]:
            assert len(seen.lines) == 3 * outage + 2
            seen.log(actor, "bus.reconnected", url="nats://x", away_s=0.5)
    assert seen.lines == 2 * [
        "trouble  actor-0  lost the connection to the broker at nats://x; trying until it is back",
        "trouble  actor-6  died (signal SIGKILL), starting it again (restarts: 1)",
        "mended   all 6  the broker at nats://x is back after 0.5 s",
    ]


def test_one_that_lost_it_alone_is_named():
    seen = Seen()
    seen.log("actor-3", "bus.disconnected", url="nats://x")
    seen.log("actor-3", "bus.reconnected", url="nats://x", away_s=0.5)
    assert [line.split("  ")[1].strip() for line in seen.lines] == ["actor-3", "actor-3"]


@pytest.mark.parametrize("event", sorted(OF_ALL))
def test_what_many_meet_at_once_is_told_once(event):
    seen = Seen()
    for second in range(0, 50, 2):
        seen.now = 1000.0 + second
        for actor in ACTORS:
            seen.log(actor, event, url="nats://x", error="why", why="no answer", until="12:00:00")
    assert len(seen.lines) == 1
    seen.now += OF_ALL_EVERY_S
    seen.log(ACTORS[4], event)
    assert len(seen.lines) == 2, "it goes on, or comes again"


@pytest.mark.parametrize("handed_on", [0, 1, 3])
@pytest.mark.parametrize("supervised", [True, False])
def test_a_death_is_told_once(supervised, handed_on):
    seen = Seen(supervised=["generator-0"] if supervised else [])
    fact = {"type": "fact", "kind": "died", "actor": "sampler-0", "at": 1007.0,
            "data": {"kind": "generator", "actor": "generator-0", "handed_on": handed_on}}  # fmt: skip
    if supervised:
        seen.view.feed({"type": "actor", "actor": "generator-0", "state": "restarting", "restarts": 1}, seen.now)
        seen.log("generator-0", "died (signal SIGKILL), starting it again (restarts: 1)")
    seen.view.feed(fact, seen.now)
    work = {0: "0 deliveries", 1: "1 delivery", 3: "3 deliveries"}[handed_on]
    assert sum("generator-0 died" in line or "generator-0  died" in line for line in seen.lines) == 1
    assert sum(f"{work} " in line for line in seen.lines) == (0 if supervised and not handed_on else 1)
    assert seen.view.state.actors.get("generator-0") is None or seen.view.state.actors["generator-0"].restarts == 1


def test_a_death_has_no_reason_of_an_earlier_one(tmp_path):
    program = f"""
import os, pathlib, signal
lives = pathlib.Path({str(tmp_path / "lives")!r})
lives.write_text(lives.read_text() + "x" if lives.exists() else "x")
if len(lives.read_text()) == 1:
    raise SystemExit("said in its first life")
os.kill(os.getpid(), signal.SIGKILL)
"""
    heard = []
    child = Child("actor-0", ["-c", program], tmp_path / "log", restart_after_s=0, give_up_after=3,
                  on_line=lambda _, event: heard.append(event))  # fmt: skip
    asyncio.run(child.keep_running())
    assert [event["why"] for event in heard if "why" in event] == ["said in its first life", ""]
    seen = Seen()
    seen.log("actor-0", **{key: value for key, value in heard[-1].items() if key != "level"})
    assert seen.lines == ["trouble  actor-0  died (signal SIGKILL), starting it again (restarts: 2)"]


def a_bus(name="one"):
    broker = MemoryBroker(MemoryServer(SystemClock()), name)
    made = topology("own", device_classes=[("triton", "cpu")], ack_wait_s=30, dead_after_s=1.0, max_worker_deaths=3)
    return broker, made, RunBus(broker, "own", name)


async def a_damaged_checkpoint(folder):
    broker, made, bus = a_bus("checkpointer-0")
    await broker.ensure(made)
    config = load("configs/demo.toml", ["run.name=own"])
    (folder.checkpoints / "step-000002.written").mkdir(parents=True)
    one = Checkpointer(config, bus, "checkpointer-0", folder, SystemClock())
    await one._commit(folder.checkpoints / "step-000002.written", 2)
    return await bus.read_facts(1)


async def damaged_ones_at_a_resume(folder):
    from actors.learner_parts import where_to_go_on

    broker, made, bus = a_bus("learner-0")
    await broker.ensure(made)
    (folder.checkpoints / "step-000002").mkdir(parents=True)
    assert await where_to_go_on(bus, folder.checkpoints, 2) == (None, None)
    return await bus.read_facts(1)


async def an_unreadable_message(_):
    broker, made, bus = a_bus("generator-0")
    await broker.ensure(made)

    class Delivered:
        data, subject, stream, seq, deliveries = b"{}", "requests.x", "own_requests", 1, 1

        async def term(self):
            pass

    worker = Worker(
        bus, stream="own_requests", consumer="x", kind=Request, handler=None, on_poison=None, slots=1, ack_wait_s=30.0
    )
    await worker._work(Delivered())
    return await bus.read_facts(1)


@pytest.mark.parametrize("trouble", [a_damaged_checkpoint, damaged_ones_at_a_resume, an_unreadable_message])
def test_what_is_a_fact_as_well_is_told_once(tmp_path, trouble):
    """To who watches on the bus and to who reads the folder; the log keeps its line."""
    bad = []
    with logs.told_to(bad.append):
        found = asyncio.run(trouble(RunFolder(tmp_path)))
    assert len(bad) == 1 and bad[0]["fact"] in facts.ALL
    (fact,) = [msgspec.to_builtins(one) for _, one in found]
    assert fact["kind"] == bad[0]["fact"]
    seen = Seen()
    seen.troubles.take("one-0", bad[0])
    seen.view.feed(fact, seen.now)
    assert len(seen.lines) == 1, seen.lines
    assert ("; set aside as step-000002.damaged" in seen.lines[0]) == (trouble is damaged_ones_at_a_resume)
    assert inspect.error_of(bad[0] | {"level": "error"}, "one-0") is None


class NoActors(local.LocalRun):
    def _actors(self):
        return []


def up(monkeypatch, capsys, folder, wait, steps=12):
    monkeypatch.setattr(supervise, "LocalRun", type("Run", (NoActors,), {"wait": wait}))
    config = load("configs/demo.toml", ["run.name=own", f"run.folder={folder}", "bus.port=0", f"run.steps={steps}"])
    code = asyncio.run(asyncio.wait_for(supervise.supervise(config, ""), 60))
    return code, capsys.readouterr().out.splitlines()


async def is_interrupted(run):
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.sleep(3600)


def test_a_ctrl_c_is_answered_once_and_the_way_on_told_once(tmp_path, monkeypatch, capsys):
    code, lines = up(monkeypatch, capsys, tmp_path, is_interrupted)
    assert code == 130 and max(Counter(lines).values()) == 1
    assert sum("stopping" in line for line in lines) == 1
    assert sum("Ctrl-C again" in line for line in lines) == 1
    assert sum("goes on from here" in line for line in lines) == 1
    assert lines[-1].startswith("stopped at step 0 of 12: `kernelmill up`")


def test_a_run_whose_last_step_was_made_while_it_stopped_does_not_go_on(tmp_path, monkeypatch, capsys):
    from bus.messages import Step

    async def meanwhile(run):
        with Record(run.folder.root) as record:
            for kind, step in (("incarnation", 0), ("step", 1), ("finished", 1)):
                record.append_steps([Step(run_id="own", kind=kind, incarnation=1, step=step, version=step)])
        await is_interrupted(run)

    code, lines = up(monkeypatch, capsys, tmp_path, meanwhile, steps=1)
    assert code == 130 and lines[-1] == "stopped; the run has finished, at step 1"
    assert "goes on" not in " ".join(lines)


def test_a_broker_that_hangs_does_not_end_who_looks_on(tmp_path, monkeypatch, capsys):
    """What it was asked meanwhile is asked again, and the view goes on."""
    monkeypatch.setattr("bus.reader._ANSWER_S", 1.0)
    connected, goes_on, hung = asyncio.Event(), asyncio.Event(), asyncio.Event()
    feed = supervise.View.feed

    def fed(view, event, now):
        feed(view, event, now)
        if event["type"] == "queues":
            (goes_on if hung.is_set() else connected).set()

    monkeypatch.setattr(supervise.View, "feed", fed)

    async def hangs(run):
        await connected.wait()
        os.kill(run._server.pid, signal.SIGSTOP)
        await asyncio.sleep(HANGS_S)
        hung.set()
        os.kill(run._server.pid, signal.SIGCONT)
        await goes_on.wait()

    code, lines = up(monkeypatch, capsys, tmp_path, hangs)
    assert code == 0 and lines[-1] == "finished; writing everything down"


def test_time_left_is_no_matter_of_what_a_resumed_run_did_before():
    state = LiveState()
    state.feed({"type": "run", "name": "own", "steps": 20, "started_at": 5000.0})
    for step in range(1, 7):
        state.feed({"type": "step", "kind": "step", "incarnation": 1, "step": step, "at": 1000.0 + step})
    assert state.done == 6 and state.left_s(5010.0) is None


def test_a_step_that_takes_long_does_not_eat_the_time_of_the_others():
    state = LiveState(steps_total=10)
    for step in range(1, 5):
        state.feed({"type": "step", "kind": "step", "incarnation": 1, "step": step, "at": 100.0 + 8 * step})
    assert [state.left_s(at) for at in (140.0, 1000.0)] == [40.0, 40.0]


@pytest.mark.parametrize(("code", "goes_on", "reports"), [(0, False, 1), (0, True, 0), (130, True, 1), (1, True, 1)])
def test_a_demo_tells_its_report_once(tmp_path, monkeypatch, code, goes_on, reports):
    """At its end; or here, where it ends here."""
    from runners import up as up_command

    async def ends(*_):
        return code

    written = []
    monkeypatch.setattr(supervise, "supervise", ends)
    monkeypatch.setattr(up_command, "write_report", written.append)
    before = signal.getsignal(signal.SIGINT)
    try:
        config = load("configs/demo.toml", ["run.name=own", f"run.folder={tmp_path}"])
        (tmp_path / "own").mkdir()
        assert up_command.run_config(config, goes_on=goes_on) == code
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(written) == reports
