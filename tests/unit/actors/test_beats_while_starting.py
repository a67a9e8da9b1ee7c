"""An actor that starts is alive: it beats on while it does what takes long, however long that takes.

What takes long waits here for a beat that is newer than itself. On a loop that stands still meanwhile none comes, and
others would count the actor as dead."""

import asyncio
import importlib
import inspect
import threading
from pathlib import Path

import pytest

from actors.compute import MainThreadCalls
from bus import facts
from bus.memory import MemoryBroker
from bus.memory_server import MemoryServer
from bus.run_bus import RunBus
from bus.topology import topology
from configs.schema import RunConfig
from core.clock import SystemClock
from core.evaluation.pool import JudgeError
from core.run_folder import RunFolder
from runners.actor_process import actor_class
from runners.cli import first_cause
from runners.run_actor import KINDS

DEMO = Path(__file__).parents[3] / "configs" / "policies" / "demo"
PATIENCE_S = 20.0
TASK = "import torch\n\n\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        return torch.relu(x)\n\n\n"
TASK += "def get_inputs():\n    return [torch.rand(8)]\n\n\ndef get_init_inputs():\n    return []\n"
STARTS = [
    ("recorder", "actors.recorder.Record"),
    ("recorder", "actors.recorder.open_trackers"),
    ("checkpointer", "core.checkpoints.store.verify"),
    ("sampler", "core.evaluation.audit.auditor.Auditor.audit"),
    ("learner", "core.checkpoints.store.set_damaged_aside"),
    ("learner", "core.training.ranks.RankGroup"),
    ("generator", "core.generation.transformers_engine.TransformersEngine._load"),
    ("generator", "core.generation.vllm_compat.version"),
    ("evaluator", "core.evaluation.pool._Worker._receive"),
    ("gateway", "actors.eval_http.EvalServer.start"),
]
"""What takes long at the start of each kind: reading, importing, loading, processes."""


class EnoughError(Exception):
    """The rest of the start is not wanted here."""


def test_every_kind_is_here():
    assert {kind for kind, _ in STARTS} == set(KINDS)


@pytest.mark.parametrize(("kind", "slow"), STARTS)
def test_it_beats_while_it_starts(kind, slow, tmp_path, monkeypatch):
    beaten, begun, came = threading.Event(), threading.Event(), []

    def waits(*_, **__):
        begun.set()
        beaten.clear()
        came.append(beaten.wait(PATIENCE_S))
        raise EnoughError

    async def waits_on_the_loop(*_, **__):
        await asyncio.to_thread(waits)

    module, _, name = slow.rpartition(".")
    owner = _resolved(module)
    as_it_is = inspect.iscoroutinefunction(getattr(owner, name))
    monkeypatch.setattr(owner, name, waits_on_the_loop if as_it_is else waits)

    async def main():
        broker = MemoryBroker(MemoryServer(SystemClock()), f"{kind}-0")
        await broker.ensure(
            topology("run", device_classes=[("triton", "cpu")], ack_wait_s=60, dead_after_s=7, max_worker_deaths=3)
        )
        bus = RunBus(broker, "run", f"{kind}-0")
        put = bus.beat

        async def beat(message):
            await put(message)
            if begun.is_set():
                beaten.set()

        bus.beat = beat
        folder = RunFolder(tmp_path / "run")
        written = folder.checkpoints / "step-000001.written"
        written.mkdir(parents=True)
        await bus.fact(facts.CHECKPOINT_WRITTEN, step=1, folder=str(written))
        more = {}
        if kind == "learner":
            more["compute"] = MainThreadCalls()
            threading.Thread(target=more["compute"].serve, daemon=True).start()
        actor = actor_class(kind)(_config(tmp_path, slow), bus, f"{kind}-0", folder, SystemClock(), **more)
        try:
            await actor.live()
        finally:
            if more:
                more["compute"].close()

    try:
        asyncio.run(main())
    except Exception as error:
        if not isinstance(first_cause(error), EnoughError | JudgeError):  # the latter of a worker that did not start
            raise
    assert came and all(came), f"{kind} did not beat while it was at {slow}"


def _config(folder: Path, slow: str) -> RunConfig:
    tasks = folder / "tasks"
    (tasks / "level1").mkdir(parents=True)
    (tasks / "level1" / "1_relu.py").write_text(TASK)
    return RunConfig.model_validate(
        {
            "model": {"path": str(DEMO), "dtype": "float32"},
            "run": {"name": "run", "folder": str(folder)},
            "tasks": {"train": [{"kind": "folder", "path": str(tasks)}]},
            "rollout": {"engine": "vllm" if "vllm" in slow else "transformers", "threads": 1},
            "learner": {"device": "cpu", "threads": 1},
            "judge": {"workers": 1},
            "gateway": {"port": 0},
            "recorder": {"wandb": "disabled"},
            "bus": {"beat_s": 0.1, "dead_after_s": 1.0},
        }
    )


def _resolved(dotted: str):
    """A module, or a class in one."""
    try:
        return importlib.import_module(dotted)
    except ModuleNotFoundError:
        module, _, name = dotted.rpartition(".")
        return getattr(importlib.import_module(module), name)
