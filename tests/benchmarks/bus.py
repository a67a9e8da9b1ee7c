"""Throughput of the bus beside raw nats-py, in one run on one machine. Prints one JSON line.

    python -m tests.benchmarks.bus [--messages 20000] [--megabytes 400] [--workers 64] [--processes 1] [--actors 1000]

Everything goes through a real nats-server with a file store that shares this machine's cores. `bus_*` is `NatsBroker`,
`raw_*` is nats-py's own JetStream client doing the same with the same number of workers.

    publish_per_s   4 KB messages that were confirmed as stored in a stream with one message per key
    cycle_per_s     4 KB messages published, fetched one by one and acknowledged twice (`ack_sync`)
    *_cpu_us        processor time of client and server for one of them
    write_mb_per_s  512 KB messages confirmed as stored      read_mb_per_s   the same, read back by position

`actors_*`: that many connections, each beating every 2 s and waiting for work, in one process. How long from asking to
publish until the work is in a worker's hands, and until its ack is confirmed, at 50 jobs a second (milliseconds).
"""

import argparse
import asyncio
import itertools
import json
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable
from multiprocessing import get_context
from pathlib import Path

import msgspec
import nats
import nats.errors
import psutil
import uvloop

from bus.broker import BucketSpec, ConsumerSpec, StreamSpec, Topology
from bus.nats import NatsBroker
from bus.server import EmbeddedServer

SMALL, LARGE = 4096, 512 * 1024
CONSUMER = "workers"


def table(run: str) -> Topology:
    return Topology(
        streams=(
            StreamSpec(name=f"{run}_LOG", subjects=(f"{run}.log.>",), unique=True),
            StreamSpec(name=f"{run}_JOBS", subjects=(f"{run}.job.>",), work_queue=True, unique=True),
        ),
        consumers=(ConsumerSpec(stream=f"{run}_JOBS", name=CONSUMER, filter=f"{run}.job.>", max_ack_pending=10_000),),
        buckets=(),
    )


class Meter:
    """Rates, and the processor time of client and server per piece of work, which a busy machine disturbs less."""

    def __init__(self, server_pid: int) -> None:
        self._processes = [psutil.Process(server_pid), psutil.Process()]
        self.found: dict[str, float] = {}

    async def measure(self, name: str, count: int, workers: int, work: Callable[[int], Awaitable[None]]) -> float:
        before = self._cpu_s()
        rate = await spread(count, workers, work)
        self.found[f"{name}_per_s"] = rate
        self.found[f"{name}_cpu_us"] = (self._cpu_s() - before) / count * 1e6
        return rate

    def _cpu_s(self) -> float:
        return sum(sum(process.cpu_times()[:2]) for process in self._processes)


async def spread(count: int, workers: int, work: Callable[[int], Awaitable[None]]) -> float:
    """Do `work(0..count-1)` with so many workers; how many a second."""
    numbers = itertools.count()

    async def worker() -> None:
        while (number := next(numbers)) < count:
            await work(number)

    start = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(workers)))
    return count / (time.perf_counter() - start)


async def bench_bus(
    url: str, token: str, pid: int, run: str, messages: int, blobs: int, workers: int
) -> dict[str, float]:
    broker = await NatsBroker.connect(url, token, name=run)
    await broker.ensure(table(run))
    small, large = bytes(SMALL), os.urandom(LARGE)

    async def publish(number: int) -> None:
        await broker.publish(f"{run}.log.{number}", small)

    async def cycle(number: int) -> None:
        await broker.publish(f"{run}.job.{number}", small)
        delivery = await broker.fetch(f"{run}_JOBS", CONSUMER)
        assert delivery is not None
        await delivery.ack()

    async def write(number: int) -> None:
        await broker.publish(f"{run}.log.large-{number}", large)

    meter, result = Meter(pid), {}
    await meter.measure("publish", messages, workers, publish)
    await meter.measure("cycle", messages // 4, workers, cycle)
    first = (await broker.stream_state(f"{run}_LOG")).last_seq + 1
    result["write_mb_per_s"] = await spread(blobs, min(workers, 16), write) * LARGE / 1e6
    start, position = time.perf_counter(), first
    while batch := await broker.read(f"{run}_LOG", position, timeout_s=0):
        position = batch[-1].seq + 1
    assert position == first + blobs
    result["read_mb_per_s"] = blobs * LARGE / 1e6 / (time.perf_counter() - start)
    await broker.close()
    return {**meter.found, **result}


async def bench_raw(
    url: str, token: str, pid: int, run: str, messages: int, blobs: int, workers: int
) -> dict[str, float]:
    client = await nats.connect(url, token=token)
    js = client.jetstream()
    broker = await NatsBroker.connect(url, token, name=run)
    await broker.ensure(table(run))
    small, large = bytes(SMALL), os.urandom(LARGE)
    pulls = asyncio.Queue[nats.js.JetStreamContext.PullSubscription]()
    for _ in range(workers):
        pulls.put_nowait(await js.pull_subscribe_bind(CONSUMER, f"{run}_JOBS"))

    async def publish(number: int) -> None:
        await js.publish(f"{run}.log.{number}", small)

    async def cycle(number: int) -> None:
        await js.publish(f"{run}.job.{number}", small)
        pull = await pulls.get()
        [message] = await pull.fetch(1, timeout=5)
        await message.ack_sync()
        pulls.put_nowait(pull)

    async def write(number: int) -> None:
        await js.publish(f"{run}.log.large-{number}", large)

    meter, result = Meter(pid), {}
    await meter.measure("publish", messages, workers, publish)
    await meter.measure("cycle", messages // 4, workers, cycle)
    result["write_mb_per_s"] = await spread(blobs, min(workers, 16), write) * LARGE / 1e6
    reader = await js.pull_subscribe(
        f"{run}.log.>",
        stream=f"{run}_LOG",
        config=nats.js.api.ConsumerConfig(
            ack_policy=nats.js.api.AckPolicy.NONE, opt_start_seq=messages + 1, deliver_policy="by_start_sequence"
        ),
    )
    start, got = time.perf_counter(), 0
    while got < blobs:
        got += len(await reader.fetch(min(48, blobs - got), timeout=5))
    result["read_mb_per_s"] = blobs * LARGE / 1e6 / (time.perf_counter() - start)
    await broker.close()
    await client.close()
    return {**meter.found, **result}


async def bench_actors(url: str, token: str, count: int, jobs: int) -> dict[str, float]:
    run = "actors"
    beats = BucketSpec(name=f"{run}_beats", ttl_s=7.0)
    brokers = [await NatsBroker.connect(url, token, name=f"{run}-{n}") for n in range(count)]
    await brokers[0].ensure(msgspec.structs.replace(table(run), buckets=(beats,)))
    asked: dict[str, float] = {}
    taken_ms: list[float] = []
    acked_ms: list[float] = []

    async def beat(number: int, broker: NatsBroker) -> None:
        await asyncio.sleep(2.0 * number / count)
        while True:
            await broker.put(beats.name, f"actor.{number}", bytes(300))
            await asyncio.sleep(2.0)

    async def work(broker: NatsBroker) -> None:
        while len(acked_ms) < jobs:
            delivery = await broker.fetch(f"{run}_JOBS", CONSUMER, 5.0)
            if delivery is not None:
                taken_ms.append((time.perf_counter() - asked[delivery.subject]) * 1e3)
                await delivery.ack()
                acked_ms.append((time.perf_counter() - asked[delivery.subject]) * 1e3)

    tasks = [asyncio.create_task(beat(*what)) for what in enumerate(brokers)]
    workers = [asyncio.create_task(work(broker)) for broker in brokers]
    await asyncio.sleep(3.0)  # all of them wait and beat
    for number in range(jobs):
        subject = f"{run}.job.{number}"
        asked[subject] = time.perf_counter()
        await brokers[number % count].publish(subject, bytes(SMALL))
        await asyncio.sleep(1 / 50)
    await asyncio.gather(*workers)
    for task in tasks:
        task.cancel()
    alive = len(await brokers[0].keys(beats.name))
    for broker in brokers:
        await broker.close()
    p50, p99 = (sorted(taken_ms)[int(jobs * share)] for share in (0.5, 0.99))
    return {
        "count": count,
        "alive": alive,
        "taken_ms_p50": p50,
        "taken_ms_p99": p99,
        "acked_ms_p50": sorted(acked_ms)[jobs // 2],
    }


def in_process(
    which: str, url: str, token: str, pid: int, run: str, messages: int, blobs: int, workers: int
) -> dict[str, float]:
    """One client process's share."""
    bench = {"bus": bench_bus, "raw": bench_raw}[which]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(bench(url, token, pid, run, messages, blobs, workers))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--messages", type=int, default=20_000, help="4 KB messages of each kind")
    parser.add_argument("--megabytes", type=int, default=400, help="data in 512 KB messages")
    parser.add_argument("--workers", type=int, default=64, help="calls in progress at once, per process")
    parser.add_argument("--processes", type=int, default=1, help="client processes that share the work")
    parser.add_argument("--actors", type=int, default=0, help="simulated actors, e.g. 1000; 0 leaves that part out")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bus-benchmark-"))
    server = EmbeddedServer(folder)
    server.start()
    out: dict[str, float | int | str] = {"benchmark": "bus", "cores": os.cpu_count() or 0, "processes": args.processes}
    try:
        with get_context("spawn").Pool(args.processes) as pool:
            for which in ("raw", "bus"):
                share = args.messages // args.processes, args.megabytes * 1_000_000 // LARGE // args.processes
                calls = [
                    (which, server.url, server.token, server.pid, f"{which}{n}", *share, args.workers)
                    for n in range(args.processes)
                ]
                results = pool.starmap(in_process, calls, chunksize=1)
                for name in results[0]:
                    total = sum(result[name] for result in results)
                    out[f"{which}_{name}"] = round(total / len(results) if name.endswith("_us") else total, 1)
        for name in (
            "publish_per_s",
            "cycle_per_s",
            "write_mb_per_s",
            "read_mb_per_s",
            "publish_cpu_us",
            "cycle_cpu_us",
        ):
            out[f"ratio_{name}"] = round(float(out[f"bus_{name}"]) / float(out[f"raw_{name}"]), 2)
        if args.actors:
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, args.actors + 200)), hard))
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                found = runner.run(bench_actors(server.url, server.token, args.actors, jobs=500))
            out.update({f"actors_{name}": round(value, 2) for name, value in found.items()})
    finally:
        server.stop()
        shutil.rmtree(folder)
    print(json.dumps(out))


if __name__ == "__main__":
    main()
