"""A gateway over the in-memory bus: real desk, real HTTP server on a free port, real work queue and verdict stream.

The test says which verdict a candidate gets, and so plays the judge behind the queue.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import msgspec

from actors.eval_desk import Desk
from actors.eval_http import EvalServer, listen
from actors.fault_book import FaultBook
from actors.gateway import RunJudging
from bus import facts, subjects
from bus.memory import MemoryBroker
from bus.memory_server import MemoryServer
from bus.messages import Beat, Evaluation, Judged
from bus.run_bus import RunBus
from bus.topology import topology
from bus.worker import Worker
from configs.schema import RunConfig
from core.clock import ManualClock, SystemClock
from core.evaluation.verdict import Verdict

Verdicts = Callable[[str], Awaitable[dict[str, Any]]]
"""Candidate -> the fields of its verdict."""


def body(candidate: str = "class ModelNew: ...", **fields: Any) -> dict[str, Any]:
    """A request as the slime client sends it."""
    return {
        "original_model_src": "class Model: ...",
        "custom_model_src": candidate,
        "num_correct_trials": 5,
        "num_perf_trials": 100,
        "measure_performance": True,
        "backend": "triton",
        "verbose": False,
        "seed": 42,
    } | fields


class Scene:
    """What a test sees: the desk, the server's address, and how often each candidate was judged."""

    def __init__(self) -> None:
        self.judged: Counter[str] = Counter()
        self.settings: dict[str, dict[str, Any]] = {}
        """Candidate -> what came with it."""
        self.clock = ManualClock()
        self.book = FaultBook(threshold=10)
        self.desk: Desk
        self.server: EvalServer
        self.judging: RunJudging
        self.bus: RunBus
        self.url = ""


@contextlib.asynccontextmanager
async def scene(verdicts: Verdicts, *, token: str = "", **gateway: Any) -> AsyncIterator[tuple[Scene, Any]]:
    """(scene, HTTP session)."""
    config = RunConfig.model_validate({"model": {"path": "m"}, "gateway": gateway})
    here = Scene()
    server = MemoryServer(SystemClock())
    buses = [RunBus(MemoryBroker(server, name), "run", name) for name in ("gateway", "judge")]
    for bus in buses:
        await bus.broker.ensure(
            topology("run", device_classes=[("triton", "cpu")], ack_wait_s=30, dead_after_s=7, max_worker_deaths=3)
        )
    here.bus = buses[1]

    async def judge(delivery: Any, evaluation: Evaluation) -> None:
        here.judged[evaluation.candidate] += 1
        here.settings[evaluation.candidate] = evaluation.settings
        fields = await verdicts(evaluation.candidate)
        verdict = Verdict(candidate_key=evaluation.candidate_key, **fields)
        await buses[1].publish_judged(Judged(run_id="run", verdict=verdict, evaluator="judge"))
        await buses[1].fact(facts.JUDGED, verdict=verdict.kind, category=verdict.category)

    async def poisoned(evaluation: Evaluation, why: str) -> None:
        raise AssertionError(why)

    worker = Worker(
        buses[1],
        stream=buses[1].names.evaluations,
        consumer=subjects.evaluate_consumer("triton", "cpu"),
        kind=Evaluation,
        handler=judge,
        on_poison=poisoned,
        slots=64,
        ack_wait_s=30,
    )
    here.judging = RunJudging(config, buses[0], here.book, here.clock)
    here.desk = Desk(here.judging, places=config.gateway.places, clock=here.clock)
    here.server = EvalServer(here.desk, here.book, token=token, max_request_bytes=1024 * config.gateway.max_request_kb)
    listening = listen("127.0.0.1", 0, token)
    here.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    await here.server.start(listening)
    await beat(buses[1])
    work = [
        asyncio.create_task(job)
        for job in (worker.run(), here.judging.follow_evaluators(), here.judging.follow_faults())
    ]
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(here.url, connector=connector) as session:
        try:
            yield here, session
        finally:
            await here.server.stop(grace_s=0)
            for job in work:
                job.cancel()
            await asyncio.gather(*work, return_exceptions=True)


async def beat(bus: RunBus, **gauges: float) -> None:
    """The judge says that it is there."""
    await bus.beat(
        Beat(
            run_id="run", kind="evaluator", actor=bus.actor, pid=1, host="h", at=0.0, gauges={"workers": 2.0, **gauges}
        )
    )


def run(main: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(main(), 60))


async def post(session: Any, path: str, value: Any, **more: Any) -> tuple[int, Any, Any]:
    """(status, JSON body, headers)."""
    async with session.post(path, json=value, **more) as response:
        return response.status, msgspec.json.decode(await response.read()), response.headers


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 - what happens on the other side of a socket has no event here
        await asyncio.sleep(0.005)
