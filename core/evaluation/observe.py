"""Verdicts that the judge gives to planted mistakes: what second turns of the supervised phase are told.

    python -m core.evaluation.observe --per-kind 24 > core/tasks/observed_verdicts.jsonl

A policy that learns repairs must see the feedback that it will get. Judging every training pair would take hours, so
each kind of mistake (and the right but slow style, as kind `staged`) is judged on some compositions, and pairs draw
from these. Each line: {"kind": ..., "verdict": {...}}.
"""

import argparse
import asyncio
import random
import sys

import msgspec

from core.evaluation.pool import JudgePool
from core.evaluation.settings import JudgeSettings
from core.identity import digest
from core.tasks.compose import compositions
from core.tasks.compose_mistakes import MISTAKES, plant_kind


def cases(per_kind: int, seed: int) -> list[tuple[str, object, str]]:
    """(kind, task, kernel), `per_kind` of each kind, every one of another composition of the train side."""
    rng = random.Random(f"observe {seed}")
    stream = compositions(seed, "train")
    found = []
    for kind in [*MISTAKES, "staged", "fused"]:
        count = 0
        while count < per_kind:
            composition = next(stream)
            if kind in MISTAKES:
                kernel = plant_kind(composition, rng, rng.choice(["fused", "fused", "staged"]), kind)
            else:
                kernel = composition.kernel(kind)
            if kernel is not None:
                found.append((kind, composition.task(), kernel))
                count += 1
    return found


async def observe(per_kind: int, seed: int, workers: int) -> None:
    pool = JudgePool(JudgeSettings(), workers)
    await pool.start()

    async def one(kind, task, kernel):  # type: ignore[no-untyped-def]
        verdict = await pool.judge(task, kernel, digest(task.source, kernel))
        return {"kind": kind, "verdict": msgspec.structs.replace(verdict, wall_s=0.0)}

    try:
        for row in await asyncio.gather(*(one(*case) for case in cases(per_kind, seed))):
            sys.stdout.write(msgspec.json.encode(row).decode() + "\n")
    finally:
        await pool.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--per-kind", type=int, default=24)
    parser.add_argument("--seed", type=int, default=31)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    asyncio.run(observe(arguments.per_kind, arguments.seed, arguments.workers))
