"""A learner on a real broker, with a test in the generators' place: groups of episodes in, records of the chain out.

The policy is a few thousand parameters, in float32, in threads of this process as in a learner's own.
"""

import asyncio
import contextlib
import threading
import time
from pathlib import Path

import numpy as np

from actors.checkpointer import Checkpointer
from actors.compute import MainThreadCalls
from actors.learner import Learner
from bus.messages import Ended
from bus.nats import NatsBroker
from bus.run_bus import RunBus
from bus.server import EmbeddedServer
from bus.topology import topology
from configs.schema import RunConfig
from core import columns
from core.clock import SystemClock
from core.episodes.episode import Episode, Turn, tombstone
from core.evaluation.verdict import Verdict
from core.run_folder import RunFolder

VOCAB, BUDGET, CONTEXT, GROUP = 64, 96, 256, 4
DEADLINE_S = 120.0


def save_policy(folder: Path) -> Path:
    from transformers import Qwen3Config

    from core.training.model import build_lm

    config = Qwen3Config(
        vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        intermediate_size=48, max_position_embeddings=CONTEXT, tie_word_embeddings=True,
    )  # fmt: skip
    build_lm(config, seed=1).save_pretrained(folder)
    return folder


def group_id(admission: int) -> str:
    return f"{admission:032x}"


def turn(index=0, prompt=6, completion=8, score=0.0, version=0, seed=0, logprobs=None, finish="stop") -> Turn:
    """A turn of random ids; lengths in tokens."""
    g = np.random.default_rng([seed, index, prompt, completion])
    drawn = g.normal(-4.2, 0.2, completion) if logprobs is None else np.broadcast_to(logprobs, completion)
    return Turn(
        index=index, prompt_ids=columns.pack("ids", g.integers(0, VOCAB, prompt)), finish=finish, score=score,
        completion_ids=columns.pack("ids", g.integers(0, VOCAB, completion)),
        logprobs=drawn.astype("<f4").tobytes(),  # as any generator may send them: `columns.pack` refuses NaN
        versions=columns.pack("versions", np.full(completion, version)),
        verdict=Verdict(candidate_key="k", kind="fail"),
    )  # fmt: skip


def episode(admission: int, index: int, *turns: Turn) -> Episode:
    return Episode(group_id=group_id(admission), index=index, task_id="t", turns=turns)


def healthy(admission: int, version: int = 0, size: int = GROUP) -> list[Episode]:
    """A group whose scores differ."""
    return [episode(admission, i, turn(score=0.3 * i, version=version, seed=admission * 100 + i)) for i in range(size)]


def fallen(admission: int, index: int, reason: str = "infra") -> Episode:
    return tombstone(group_id(admission), index, "t", reason)


class LearnerStage:
    """`with LearnerStage(tmp_path) as stage: stage.run(main)`, where main awaits what is below."""

    def __init__(self, folder: Path, **sections) -> None:
        self.folder = RunFolder(folder / "run")
        self.server = EmbeddedServer(folder / "nats")
        given = {
            "model": {"path": str(save_policy(folder / "policy")), "dtype": "float32"},
            "run": {"name": "run", "steps": 1000, "seed": 3},
            "sampler": {"groups_per_step": 2, "group_size": GROUP, "max_staleness": 1},
            "learner": {"device": "cpu", "lr": 1e-2, "kl_coef": 0.0, "max_tokens_per_rank": BUDGET, "threads": 1},
            "checkpoints": {"every_steps": 1, "keep": 9},
        }
        for name, fields in sections.items():
            given[name] = {**given.get(name, {}), **fields}
        self.config = RunConfig.model_validate(given)

    def __enter__(self):
        self.server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.stop()

    def play(self, main) -> None:
        """Run the coroutine function `main` with a connection of its own at hand as `self.bus`."""

        async def begin() -> None:
            self.bus = await self._connect("test")
            await self.bus.broker.ensure(
                topology("run", device_classes=[("triton", "cpu")], ack_wait_s=60, dead_after_s=7, max_worker_deaths=3)
            )
            try:
                await main()
            finally:
                await self.bus.close()

        asyncio.run(begin())

    async def _connect(self, name: str) -> RunBus:
        return RunBus(await NatsBroker.connect(self.server.url, self.server.token, name=name), "run", name)

    @contextlib.asynccontextmanager
    async def learner(self, name: str = "learner"):
        """(learner, its task), with a checkpointer; asked to stop at the end, and what it raises is raised."""
        compute = MainThreadCalls()
        serving = threading.Thread(target=compute.serve, daemon=True)
        serving.start()
        buses = [await self._connect(who) for who in (name, "checkpointer")]
        actor = Learner(self.config, buses[0], name, self.folder, SystemClock(), compute=compute)
        keeper = Checkpointer(self.config, buses[1], "checkpointer", self.folder, SystemClock())
        works = [asyncio.create_task(actor.run()), asyncio.create_task(keeper.run())]
        try:
            yield actor, works[0]
            actor.stopping.set()
            await works[0]
        finally:
            for stopping in (actor, keeper):
                stopping.stopping.set()
            await asyncio.gather(*works, return_exceptions=True)
            compute.close()
            for bus in buses:
                await bus.close()

    async def send(self, *groups: list[Episode]) -> None:
        for members in groups:
            for one in members:
                admission = int(one.group_id, 16)
                ended = Ended(run_id="run", episode=one, admission=admission, size=len(members), trace=one.group_id)
                assert await self.bus.publish_ended(ended)

    async def records(self, *kinds: str) -> list:
        return [step for _, step in await self.bus.read_steps(1) if step.kind in (kinds or ("step", "rejected"))]

    async def facts(self, kind: str) -> list:
        return [fact for _, fact in await self.bus.read_facts(1, limit=1000) if fact.kind == kind]

    async def until(self, work: asyncio.Task, condition) -> None:
        """Wait for `condition` (a coroutine function), as long as the learner works."""
        deadline = time.monotonic() + DEADLINE_S
        while not await condition():
            if work.done():
                work.result()
                raise AssertionError("the learner left")
            assert time.monotonic() < deadline, f"nothing came of it in {DEADLINE_S:.0f} s"
            await asyncio.sleep(0.02)

    async def steps(self, work: asyncio.Task, count: int) -> list:
        """The step records when `count` of them stand."""

        async def there() -> bool:
            return len(await self.records("step")) >= count

        await self.until(work, there)
        return await self.records("step")
