"""Hundreds of seeded runs of workers on the bus, killed at any moment: what the semantics of the broker are good for.

`jobs`: every job is done, its result stands once, and the queue is empty at the end, although workers die between any
two steps. `writers`: several writers on one compare-and-set subject make one unbroken chain.
A failing seed is printed by pytest as the test's parameter and fails again when run alone.
"""

import asyncio
import contextlib
import random

import pytest

from bus.broker import ConsumerSpec, Record, SequenceConflict, StreamSpec, SubjectTaken, Topology
from bus.memory import MemoryBroker
from bus.memory_server import MemoryServer
from tests.simulation import chaos, virtual_time

ACK_WAIT_S = 30.0
JOBS = 25
SEEDS = range(120)

TABLE = Topology(
    streams=(
        StreamSpec(name="s_JOBS", subjects=("s.job.*",), work_queue=True, unique=True),
        StreamSpec(name="s_DONE", subjects=("s.done.*",), unique=True),
        StreamSpec(name="s_STEPS", subjects=("s.step",)),
    ),
    consumers=(ConsumerSpec(stream="s_JOBS", name="work", filter="s.job.*", ack_wait_s=ACK_WAIT_S),),
    buckets=(),
)


async def worker(broker: MemoryBroker, rng: random.Random) -> None:
    """Effect first, then ack; a result that stands already is as good as one's own."""
    await broker.ensure(TABLE)
    while True:
        delivery = await broker.fetch("s_JOBS", "work")
        if delivery is None:
            continue
        ends_at = asyncio.get_running_loop().time() + rng.expovariate(1 / 4)
        while (left_s := ends_at - asyncio.get_running_loop().time()) > 0:
            await asyncio.sleep(min(left_s, ACK_WAIT_S / 3))
            await delivery.in_progress()
        with contextlib.suppress(SubjectTaken):
            await broker.publish(delivery.subject.replace("job", "done"), broker._name.encode())
        await delivery.ack()


async def producer(broker: MemoryBroker) -> None:
    """Starts over after a death: a job that stands, or whose result stands, was published before."""
    await broker.ensure(TABLE)
    for i in range(JOBS):
        if await broker.last("s_DONE", f"s.done.{i}") is None:
            with contextlib.suppress(SubjectTaken):
                await broker.publish(f"s.job.{i}", b"")


def simulate_jobs(seed: int) -> tuple[list[Record], int, float]:
    """The results in order, how many processes died, and when all was done."""
    rng = random.Random(seed)

    async def main() -> tuple[list[Record], int, float]:
        server = MemoryServer(virtual_time.LoopClock(), chaos.latency(rng))
        processes = [chaos.Process(server, f"worker-{n}", lambda broker: worker(broker, rng)) for n in range(4)]
        processes.append(chaos.Process(server, "producer", producer))
        for process in processes:
            process.start()
        raging = asyncio.create_task(chaos.rage(rng, server, processes, until_s=40.0, every_s=2.0))
        people = MemoryBroker(server, "people")
        await people.ensure(TABLE)
        done: list[Record] = []
        while len(done) < JOBS:
            try:
                done += await people.read("s_DONE", done[-1].seq + 1 if done else 1, timeout_s=60.0)
            except TimeoutError:
                continue
        took_s = asyncio.get_running_loop().time()
        await raging
        # A worker that died between its effect and its ack leaves the job to somebody who finds the result there.
        await asyncio.sleep(2 * ACK_WAIT_S + 60)
        assert (await people.stream_state("s_JOBS")).messages == 0
        for process in processes:
            await process.end()
        assert await people.read("s_DONE", done[-1].seq + 1, timeout_s=0) == []
        return done, sum(process.deaths for process in processes), took_s

    return virtual_time.run(main)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_job_is_done_once_whoever_dies(seed):
    done, _, took_s = simulate_jobs(seed)
    assert sorted(record.subject for record in done) == sorted(f"s.done.{i}" for i in range(JOBS))
    assert took_s < 600


def test_the_runs_are_rough_enough():
    """In most of them several processes die, so that the test above means something."""
    deaths = [simulate_jobs(seed)[1] for seed in range(10)]
    assert sum(deaths) / len(deaths) > 3


@pytest.mark.parametrize("seed", [0, 1])
def test_equal_seeds_give_equal_runs(seed):
    assert simulate_jobs(seed) == simulate_jobs(seed)


def test_other_seeds_give_other_runs():
    assert simulate_jobs(0) != simulate_jobs(1)


async def writer(broker: MemoryBroker, rng: random.Random) -> None:
    """Reads the chain to its end and adds to it, until somebody else was faster; then it starts over."""
    await broker.ensure(TABLE)
    while True:
        last = await broker.last("s_STEPS", "s.step")
        number, seq = (int(last.data), last.seq) if last else (0, 0)
        try:
            while True:
                await asyncio.sleep(rng.uniform(0.0, 1.0))
                seq = await broker.publish("s.step", b"%d" % (number + 1), expect_last_seq=seq)
                number += 1
        except SequenceConflict:
            continue


@pytest.mark.parametrize("seed", range(40))
def test_writers_who_compare_and_set_make_one_chain(seed):
    rng = random.Random(seed)

    async def main() -> list[int]:
        server = MemoryServer(virtual_time.LoopClock(), chaos.latency(rng))
        processes = [chaos.Process(server, f"writer-{n}", lambda broker: writer(broker, rng)) for n in range(3)]
        for process in processes:
            process.start()
        await chaos.rage(rng, server, processes, until_s=60.0, every_s=2.0)
        for process in processes:
            process.kill()
        people = MemoryBroker(server, "people")
        return [int(record.data) for record in await people.read("s_STEPS", 1, limit=10_000)]

    chain = virtual_time.run(main)
    assert chain == list(range(1, len(chain) + 1)) and len(chain) > 20
