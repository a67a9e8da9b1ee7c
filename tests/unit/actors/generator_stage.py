"""A rollout generator on an in-memory bus, with a test in the learner's place.

The policy is the demo's, cut off in the middle of its kernels; every candidate is answered with `fail`.
"""

import asyncio
import contextlib
import hashlib
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from actors.rollout_generator import RolloutGenerator
from bus import subjects
from bus.broker import Delivery
from bus.memory import MemoryBroker
from bus.memory_server import MemoryServer
from bus.messages import Evaluation, Judged, Policy, Request
from bus.run_bus import RunBus
from bus.topology import topology
from bus.worker import Worker
from configs.schema import RunConfig
from core import columns
from core.clock import SystemClock
from core.evaluation.verdict import Verdict
from core.run_folder import RunFolder
from core.tasks.loading import load_tasks
from core.weights import filesystem

DEMO = Path(__file__).parents[3] / "configs" / "policies" / "demo"
TOKENS = 24


def group_named(name: str) -> str:
    """The id of a test's group: 32 hexadecimal digits, as every group's."""
    return hashlib.md5(name.encode()).hexdigest()


class Stage:
    """`async with stage.generator() as (actor, work)`: an actor at work; publish policies and requests meanwhile."""

    def __init__(self, folder: Path, **rollout) -> None:
        self.folder = folder
        self.server = MemoryServer(SystemClock())
        self.bus = RunBus(MemoryBroker(self.server, "learner"), "run", "learner")
        self.config = RunConfig.model_validate(
            {
                "model": {"path": str(DEMO), "dtype": "float32"},
                "episodes": {"max_turns": 2, "zero_turns": 0, "prompt": "compact"},
                "rollout": {
                    "engine": "transformers", "max_new_tokens": TOKENS, "threads": 1, "parity_max_abs": 0.01,
                    "parity_mean_share": 0.001, **rollout,
                },
                "weights": {"apply_timeout_s": 20},
                "bus": {"beat_s": 0.5},
            }
        )  # fmt: skip
        self.task = load_tasks([{"kind": "composed", "count": 1, "seed": 11, "split": "train", "path": "",
                                 "revision": "", "levels": ()}], "triton")[0]  # fmt: skip
        self.masters = dict(AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.float32).named_parameters())

    async def open(self) -> None:
        await self.bus.broker.ensure(
            topology("run", device_classes=[("triton", "cpu")], ack_wait_s=60, dead_after_s=7, max_worker_deaths=3)
        )

    def weights(self, scale: float = 1.0) -> list[tuple[str, torch.Tensor]]:
        return [(name, tensor.detach() * scale) for name, tensor in self.masters.items()]

    def write(self, version: int, scale: float = 1.0, *, to: str = "weights") -> tuple[str, str]:
        """(folder, fingerprint) of a version that is written."""
        manifest = filesystem.publish(self.folder / to, version, self.weights(scale), keep=9)
        return str(filesystem.version_folder(self.folder / to, version)), manifest.fingerprint

    async def policy(self, version: int, folder: str, fingerprint: str, source: str = "", incarnation: int = 1) -> None:
        await self.bus.put_policy(
            Policy(
                run_id="run",
                version=version,
                step=version,
                folder=folder,
                fingerprint=fingerprint,
                source=source,
                incarnation=incarnation,
            )
        )

    async def request(self, name: str, size: int = 4, **fields) -> None:
        await self.bus.publish_request(
            Request(
                run_id="run",
                trace=group_named(name),
                group_id=group_named(name),
                admission=0,
                task=self.task,
                size=size,
                max_turns=2,
                **fields,
            )
        )

    @contextlib.asynccontextmanager
    async def generator(self, name: str = "generator-1"):
        broker = MemoryBroker(self.server, name)
        actor = RolloutGenerator(
            self.config, RunBus(broker, "run", name), name, RunFolder(self.folder / "run"), SystemClock()
        )
        work = asyncio.create_task(actor.run())
        judging = asyncio.create_task(self._judge())
        try:
            yield actor, work
        finally:
            actor.stopping.set()
            await asyncio.wait({work}, timeout=5)
            work.cancel()
            judging.cancel()
            await asyncio.gather(work, judging, return_exceptions=True)

    async def _judge(self) -> None:
        async def judge(_: Delivery, asked: Evaluation) -> None:
            verdict = Verdict(candidate_key=asked.candidate_key, kind="fail")
            await self.bus.publish_judged(Judged(run_id="run", verdict=verdict))

        async def refuse(asked: Evaluation, why: str) -> None:
            raise AssertionError(why)

        await Worker(
            self.bus, stream=self.bus.names.evaluations, consumer=subjects.evaluate_consumer("triton", "cpu"),
            kind=Evaluation, handler=judge, on_poison=refuse, slots=4, ack_wait_s=60,
        ).run()  # fmt: skip

    async def episodes(self) -> list:
        return [ended for _, ended in await self.bus.read_episodes(1, limit=1000)]

    async def facts(self, kind: str) -> list:
        return [fact for _, fact in await self.bus.read_facts(1) if fact.kind == kind]

    async def until(self, work: asyncio.Task, condition) -> None:
        """Wait for `condition` (a coroutine function), as long as the actor works."""
        while not await condition():
            if work.done():
                work.result()
                raise AssertionError("the generator left")
            await asyncio.sleep(0.02)


def versions(episodes) -> set[int]:
    return {int(v) for e in episodes for turn in e.episode.turns for v in columns.unpack("versions", turn.versions)}
