"""How many verdicts a second the CPU tier gives: `python -m tests.benchmarks.judge_cpu` prints one JSON line.

Distinct candidates for distinct generated tasks, half of them with a planted mistake, default settings, no verdict
cache. Every task is new to its worker, which is
the expensive case: a run judges a task many times.
"""

import argparse
import asyncio
import json
import os
import random
import time

from core.evaluation.pool import JudgePool
from core.evaluation.settings import JudgeSettings
from core.tasks.compose import compose


async def measure(count: int, workers: int, target: str) -> dict[str, object]:
    rng = random.Random(0)
    compositions = compose(seed=3, count=count)
    jobs = []
    for index, composition in enumerate(compositions):
        right = composition.kernel("fused" if index % 4 else "staged")
        wrong = next(text for text in composition.mistake(rng) if "ModelNew" in text)
        jobs.append((composition.task(), wrong if index % 2 else right, "fail" if index % 2 else "pass"))
    pool = JudgePool(JudgeSettings(target=target), workers=workers)
    started = time.perf_counter()
    await pool.start()
    start_s, walls_reached = time.perf_counter() - started, pool.walls
    try:
        await asyncio.gather(*(pool.judge(task, text, "warm") for task, text, _ in jobs[:workers]))
        started = time.perf_counter()
        verdicts = await asyncio.gather(*(pool.judge(task, text, f"k{i}") for i, (task, text, _) in enumerate(jobs)))
        wall_s = time.perf_counter() - started
    finally:
        await pool.stop()
    agreed = sum(verdict.kind == wanted for verdict, (_, _, wanted) in zip(verdicts, jobs, strict=True))
    walls = sorted(verdict.wall_s for verdict in verdicts)
    return {
        "verdicts_per_s": round(count / wall_s, 2),
        "verdicts": count,
        "as_wanted": agreed,
        "workers": workers,
        "cores": len(os.sched_getaffinity(0)),
        "load_1_min": round(os.getloadavg()[0], 2),
        "p50_s": walls[count // 2],
        "p95_s": walls[int(count * 0.95)],
        "start_s": round(start_s, 2),
        "target": target,
        "walls": walls_reached,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--target", default="", help="cross-compile too, e.g. cuda:90")
    args = parser.parse_args()
    print(json.dumps(asyncio.run(measure(args.count, args.workers, args.target))))


if __name__ == "__main__":
    main()
