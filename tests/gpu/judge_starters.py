"""Every starter task through both tiers on a GPU: `python -m tests.gpu.judge_starters` prints one JSON line.

Each task's own kernel must pass, measured at full size, and the one with a planted mistake must fail. Lists what came
out otherwise, with the verdict's words, and the measured speedups.
"""

import argparse
import asyncio
import json
import time
from collections import Counter

from core.evaluation.pool import JudgePool
from core.evaluation.settings import JudgeSettings
from core.evaluation.verdict import Verdict
from tests.benchmarks.judge_cpu import Job, starter_jobs


async def judge_all(jobs: list[Job], settings: JudgeSettings, workers: int) -> tuple[list[Verdict], str, float]:
    """Verdicts in the jobs' order, the sandbox in words, and how long it took after the workers' start."""
    pool = JudgePool(settings, workers)
    await pool.start()
    started = time.monotonic()
    try:
        verdicts = await asyncio.gather(
            *(pool.judge(task, source, f"{number}") for number, (task, source, _) in enumerate(jobs))
        )
        return list(verdicts), pool.walls, time.monotonic() - started
    finally:
        await pool.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--tasks", type=int, default=0, help="only the first so many (0: all)")
    parser.add_argument("--speed", choices=("none", "measured"), default="measured")
    args = parser.parse_args()
    jobs = starter_jobs()[: 2 * args.tasks or None]
    settings = JudgeSettings(device_class="gpu", speed=args.speed)
    verdicts, walls, wall_s = asyncio.run(judge_all(jobs, settings, args.workers))
    odd = [
        {"task": task.name, "wanted": wanted, "kind": verdict.kind, "tier": verdict.tier, "stage": verdict.stage,
         "category": verdict.category, "feedback": verdict.feedback[:300]}
        for (task, _, wanted), verdict in zip(jobs, verdicts, strict=True)
        if verdict.kind != wanted
    ]  # fmt: skip
    passed = {
        task.name: verdict for (task, _, _), verdict in zip(jobs, verdicts, strict=True) if verdict.kind == "pass"
    }
    print(json.dumps({
        "walls": walls, "workers": args.workers, "verdicts": len(verdicts), "wall_s": round(wall_s, 2),
        "verdicts_per_s": round(len(verdicts) / wall_s, 2), "as_wanted": len(jobs) - len(odd), "odd": odd,
        "kinds": Counter(f"{verdict.tier} {verdict.kind} {verdict.category}" for verdict in verdicts),
        "speedups": {name: [verdict.speedup_low, verdict.speedup] for name, verdict in passed.items()},
        "wall_each_s": {name: verdict.wall_s for name, verdict in passed.items()},
    }))  # fmt: skip


if __name__ == "__main__":
    main()
