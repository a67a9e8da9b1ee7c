"""How many verdicts a second the CPU tier gives: `python -m tests.benchmarks.judge_cpu` prints one JSON line.

Every starter task with two candidates, its own kernel and one with a planted mistake, all distinct; default settings,
all default stages, no verdict cache. Every task is new to its worker, which is the expensive case: a run judges a task
many times. `--tasks composed` takes generated tasks with the mistakes that the demo's policy makes.
"""

import argparse
import ast
import asyncio
import json
import os
import random
import time
from pathlib import Path

import core.tasks
from core.evaluation.pool import JudgePool
from core.evaluation.settings import JudgeSettings
from core.tasks.compose import compose
from core.tasks.sources import load_source
from core.tasks.task import Task

STARTER = Path(core.tasks.__file__).parent / "starter"
Job = tuple[Task, str, str]
"""Task, candidate, wanted kind of verdict."""


class _Mistake(ast.NodeTransformer):
    """Plants one mistake in every kernel's stores: wrong values, no mask, or an undefined name."""

    def __init__(self, kind: int) -> None:
        self.kind, self.planted = kind, False

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if ast.unparse(node.func) != "tl.store":
            return node
        masked = any(keyword.arg == "mask" for keyword in node.keywords)
        if self.kind == 1 and masked:
            node.args[0] = ast.parse(f"{ast.unparse(node.args[0])} + 100000", mode="eval").body
        elif self.kind == 2:
            node.args[1] = ast.parse("undefined_name", mode="eval").body
        else:
            node.args[1] = ast.parse(f"({ast.unparse(node.args[1])}) * 0 + 3", mode="eval").body
        self.planted = True
        return node


def wrong(source: str, kind: int) -> str:
    """The kernel with a mistake, or with an output that is left out where it has no plain tl.store."""
    mistake = _Mistake(kind)
    tree = mistake.visit(ast.parse(source))
    if not mistake.planted:
        return source.replace("def forward(", "def unused(")
    return ast.unparse(ast.fix_missing_locations(tree))


def starter_jobs() -> list[Job]:
    jobs: list[Job] = []
    for index, task in enumerate(load_source(kind="starter")):
        source = (STARTER / f"level{task.level}" / f"{task.name.removeprefix(f'l{task.level}_')}_triton.py").read_text()
        jobs += [(task, source, "pass"), (task, wrong(source, index % 3), "fail")]
    return jobs


def composed_jobs(count: int) -> list[Job]:
    rng = random.Random(0)
    jobs: list[Job] = []
    for index, composition in enumerate(compose(seed=3, count=count)):
        right = composition.kernel("fused" if index % 4 else "staged")
        bad = next(text for text in composition.mistake(rng) if "ModelNew" in text)
        jobs.append((composition.task(), bad if index % 2 else right, "fail" if index % 2 else "pass"))
    return jobs


async def measure(jobs: list[Job], workers: int, target: str) -> dict[str, object]:
    count = len(jobs)
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
        "wrong": sum(wanted == "fail" for _, _, wanted in jobs),
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
    parser.add_argument("--tasks", choices=("starter", "composed"), default="starter")
    parser.add_argument("--count", type=int, default=100, help="generated tasks")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--target", default="", help="cross-compile too, e.g. cuda:90")
    args = parser.parse_args()
    jobs = starter_jobs() if args.tasks == "starter" else composed_jobs(args.count)
    print(json.dumps(asyncio.run(measure(jobs, args.workers, args.target))))


if __name__ == "__main__":
    main()
