"""A run's judging side as real processes: broker, one evaluator, one gateway. Used by the test and the benchmark."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec

from bus.nats import NatsBroker
from bus.run_bus import RunBus
from bus.server import EmbeddedServer

ROOT = Path(__file__).parents[3]
RUN = "gateway"


class KernelExecResult(msgspec.Struct):
    """What a client of the eval server reads."""

    compiled: bool = False
    correctness: bool = False
    metadata: dict[str, Any] = {}
    runtime: float = -1.0
    runtime_stats: dict[str, Any] = {}


class Stack:
    """What runs: `processes` by kind."""

    def __init__(self, config: Path, server: EmbeddedServer, folder: Path) -> None:
        self.config, self.server, self.folder = config, server, folder
        self.url = ""
        self.processes: dict[str, subprocess.Popen[str]] = {}

    def start(self, kind: str) -> None:
        self.processes[kind] = actor(kind, self.config, self.server, self.folder)

    def restart(self, kind: str, number: int) -> None:
        """End an actor by a signal, at once, and start another one."""
        self.processes[kind].send_signal(number)
        self.processes[kind].wait(60)
        self.start(kind)


def payload(reference: str, candidate: str) -> dict[str, Any]:
    """A request with the fields that slime's kernel generator sends."""
    return {
        "original_model_src": reference,
        "custom_model_src": candidate,
        "num_correct_trials": 5,
        "num_perf_trials": 100,
        "measure_performance": True,
        "backend": "triton",
        "verbose": False,
        "seed": 42,
    }


@contextlib.contextmanager
def stack(folder: Path, *, workers: int = 2, ack_wait_s: int = 60) -> Iterator[Stack]:
    """Broker, evaluator and gateway in `folder`; ends all of them."""
    config = folder / "run.toml"
    config.write_text(
        f'run.name = "{RUN}"\nrun.folder = "{folder}"\nmodel.path = "none"\n'
        f"[bus]\nack_wait_s = {ack_wait_s}\n[judge]\nworkers = {workers}\n[gateway]\nport = 0\n"
    )
    server = EmbeddedServer(folder / "nats")
    server.start()
    here = Stack(config, server, folder)
    try:
        here.start("evaluator")
        here.start("gateway")
        here.url = listening(here.processes["gateway"], folder / "gateway.log")
        yield here
    finally:
        for process in reversed(here.processes.values()):
            process.terminate()
        for process in here.processes.values():
            process.wait(60)
        server.stop()
    codes = {kind: process.returncode for kind, process in here.processes.items()}
    assert set(codes.values()) == {0}, (codes, (folder / "gateway.log").read_text())


def actor(kind: str, config: Path, server: EmbeddedServer, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "runners.cli", "run", kind, "--config", str(config)],
        cwd=ROOT,
        env={**os.environ, "NATS_URL": server.url, "NATS_TOKEN": server.token},
        stdout=subprocess.PIPE if kind == "gateway" else subprocess.DEVNULL,
        stderr=(folder / f"{kind}.log").open("w"),
        text=True,
    )


def listening(process: subprocess.Popen[str], log: Path) -> str:
    """The address that a gateway says it listens on."""
    assert process.stdout is not None
    for line in process.stdout:
        event = json.loads(line)
        if event["event"] == "listening":
            return event["url"]
    raise AssertionError(f"the gateway ended without listening: {log.read_text()}")


async def evaluator_is_there(session: Any) -> None:
    """Returns when the gateway has seen an evaluator."""
    while True:
        async with session.get("/health") as response:
            if (await response.json())["total_gpu_devices"]:
                return
        await asyncio.sleep(0.1)


@contextlib.asynccontextmanager
async def on_bus(here: Stack) -> AsyncIterator[RunBus]:
    """The run's bus, to look at what the actors wrote."""
    broker = await NatsBroker.connect(here.server.url, here.server.token, name="test", deadline_s=10)
    bus = RunBus(broker, RUN, "test")
    try:
        yield bus
    finally:
        await bus.close()
