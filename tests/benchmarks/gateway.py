"""How the gateway holds under load: `python -m tests.benchmarks.gateway` prints one JSON line.

Broker, evaluator and gateway as real processes on this machine. 64 clients ask for verdicts all the time, each for
another candidate, while one more asks /health every 20 ms. Then the same requests again: what HTTP, bus and cache cost
without any judging. `--workers` and `--jobs` as in the judge's benchmark.
"""

import argparse
import asyncio
import itertools
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from tests.benchmarks.judge_cpu import Job, composed_jobs
from tests.unit.actors.gateway_stack import KernelExecResult, evaluator_is_there, payload, stack

CLIENTS = 64
HEALTH_BOUND_MS = 100.0
"""What docs/gateway.md promises for the 99th percentile of /health with every core busy."""


async def measure(url: str, jobs: list[Job]) -> dict[str, Any]:
    """Judge all jobs, then answer all of them again from the standing verdicts."""
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        await evaluator_is_there(session)
        await drive(session, composed_jobs(4)[:2], [])  # the evaluator is up when these are answered
        health: list[float] = []
        probe = asyncio.create_task(ask_health(session, health))
        judged_s, right = await drive(session, jobs, [])
        probe.cancel()
        await asyncio.gather(probe, return_exceptions=True)
        cached: list[float] = []
        again_s, _ = await drive(session, jobs, cached)
    health.sort()
    cached.sort()
    return {
        "clients": CLIENTS,
        "verdicts": len(jobs),
        "as_wanted": right,
        "verdicts_per_s": round(len(jobs) / judged_s, 2),
        "health_asked": len(health),
        "health_p50_ms": at(health, 0.5),
        "health_p99_ms": at(health, 0.99),
        "health_max_ms": at(health, 1.0),
        "health_bound_ms": HEALTH_BOUND_MS,
        "cached_per_s": round(len(jobs) / again_s, 1),
        "cached_p50_ms": at(cached, 0.5),
        "cached_p99_ms": at(cached, 0.99),
        "cores": len(os.sched_getaffinity(0)),
        "load_1_min": round(os.getloadavg()[0], 2),
    }


async def drive(session: aiohttp.ClientSession, jobs: list[Job], latencies_ms: list[float]) -> tuple[float, int]:
    """(seconds, answers as wanted): `CLIENTS` clients take the jobs one after the other."""
    waiting = iter(jobs)
    right = 0

    async def client() -> None:
        nonlocal right
        for task, candidate, wanted in waiting:
            began = time.perf_counter()
            async with session.post("/eval", json=payload(task.source, candidate)) as response:
                body = await response.read()
            latencies_ms.append(1e3 * (time.perf_counter() - began))
            passed = response.status == 200 and msgspec.json.decode(body, type=KernelExecResult).correctness
            right += response.status in (200, 400) and passed is (wanted == "pass")

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return time.perf_counter() - began, right


async def ask_health(session: aiohttp.ClientSession, latencies_ms: list[float]) -> None:
    for _ in itertools.count():
        began = time.perf_counter()
        async with session.get("/health") as response:
            await response.read()
        latencies_ms.append(1e3 * (time.perf_counter() - began))
        await asyncio.sleep(0.02)


def at(sorted_values: list[float], share: float) -> float:
    return round(sorted_values[min(len(sorted_values) - 1, int(share * len(sorted_values)))], 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=256)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, stack(Path(folder), workers=args.workers) as here:
        print(json.dumps(asyncio.run(measure(here.url, composed_jobs(args.jobs)))))


if __name__ == "__main__":
    main()
