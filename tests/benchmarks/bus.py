"""Throughput of the bus beside raw nats-py, in one run on one machine. Prints one JSON line.

    python -m tests.benchmarks.bus [--messages 20000] [--megabytes 400] [--workers 64] [--processes 1]

Everything goes through a real nats-server with a file store that shares this machine's cores. `bus_*` is `NatsBroker`,
`raw_*` is nats-py's own JetStream client doing the same with the same number of workers.

    publish_per_s   4 KB messages that were confirmed as stored in a stream with one message per key
    cycle_per_s     4 KB messages published, fetched one by one and acknowledged twice (`ack_sync`)
    write_mb_per_s  512 KB messages confirmed as stored      read_mb_per_s   the same, read back by position
"""

import argparse
import asyncio
import itertools
import json
import os
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable
from multiprocessing import get_context
from pathlib import Path

import nats
import nats.errors
import uvloop

from bus.broker import ConsumerSpec, StreamSpec, Topology
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


async def spread(count: int, workers: int, work: Callable[[int], Awaitable[None]]) -> float:
    """Do `work(0..count-1)` with so many workers; how many a second."""
    numbers = itertools.count()

    async def worker() -> None:
        while (number := next(numbers)) < count:
            await work(number)

    start = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(workers)))
    return count / (time.perf_counter() - start)


async def bench_bus(server: EmbeddedServer, run: str, messages: int, blobs: int, workers: int) -> dict[str, float]:
    broker = await NatsBroker.connect(server.url, server.token, name=run)
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

    result = {"publish_per_s": await spread(messages, workers, publish)}
    result["cycle_per_s"] = await spread(messages // 4, workers, cycle)
    first = (await broker.stream_state(f"{run}_LOG")).last_seq + 1
    result["write_mb_per_s"] = await spread(blobs, min(workers, 16), write) * LARGE / 1e6
    start, position = time.perf_counter(), first
    while batch := await broker.read(f"{run}_LOG", position, timeout_s=0):
        position = batch[-1].seq + 1
    assert position == first + blobs
    result["read_mb_per_s"] = blobs * LARGE / 1e6 / (time.perf_counter() - start)
    await broker.close()
    return result


async def bench_raw(server: EmbeddedServer, run: str, messages: int, blobs: int, workers: int) -> dict[str, float]:
    client = await nats.connect(server.url, token=server.token)
    js = client.jetstream()
    broker = await NatsBroker.connect(server.url, server.token, name=run)
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

    result = {"publish_per_s": await spread(messages, workers, publish)}
    result["cycle_per_s"] = await spread(messages // 4, workers, cycle)
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
    return result


def in_process(which: str, url: str, token: str, run: str, messages: int, blobs: int, workers: int) -> dict[str, float]:
    """One client process's share."""
    server = EmbeddedServer("unused")
    server._port, server.token = int(url.rsplit(":", 1)[1]), token
    bench = {"bus": bench_bus, "raw": bench_raw}[which]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(bench(server, run, messages, blobs, workers))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--messages", type=int, default=20_000, help="4 KB messages of each kind")
    parser.add_argument("--megabytes", type=int, default=400, help="data in 512 KB messages")
    parser.add_argument("--workers", type=int, default=64, help="calls in progress at once, per process")
    parser.add_argument("--processes", type=int, default=1, help="client processes that share the work")
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
                    (which, server.url, server.token, f"{which}{n}", *share, args.workers)
                    for n in range(args.processes)
                ]
                results = pool.starmap(in_process, calls, chunksize=1)
                for name in results[0]:
                    out[f"{which}_{name}"] = round(sum(result[name] for result in results), 1)
        for name in ("publish_per_s", "cycle_per_s", "write_mb_per_s", "read_mb_per_s"):
            out[f"ratio_{name}"] = round(float(out[f"bus_{name}"]) / float(out[f"raw_{name}"]), 2)
    finally:
        server.stop()
        shutil.rmtree(folder)
    print(json.dumps(out))


if __name__ == "__main__":
    main()
