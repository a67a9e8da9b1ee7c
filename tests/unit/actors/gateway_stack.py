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


class Stack(msgspec.Struct):
    url: str
    server: EmbeddedServer


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
def stack(folder: Path, *, workers: int = 2) -> Iterator[Stack]:
    """Broker, evaluator and gateway in `folder`; ends all of them."""
    config = folder / "run.toml"
    config.write_text(
        f'run.name = "{RUN}"\nrun.folder = "{folder}"\nmodel.path = "none"\n'
        f"[judge]\nworkers = {workers}\n[gateway]\nport = 0\n"
    )
    server = EmbeddedServer(folder / "nats")
    server.start()
    processes = []
    try:
        processes.append(actor("evaluator", config, server, folder))
        processes.append(actor("gateway", config, server, folder))
        yield Stack(url=listening(processes[1], folder / "gateway.log"), server=server)
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            process.wait(60)
        server.stop()
    assert [process.returncode for process in processes] == [0, 0], (folder / "gateway.log").read_text()


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
