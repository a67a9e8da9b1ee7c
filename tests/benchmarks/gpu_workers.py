"""The judge's GPU tier in several processes, as judge_gpu.py runs it: one queue of tasks, the longest first.

Whoever is free gets the next task with both of its candidates, so that a task is prepared once; of the huge ones no
more than `huge_at_once` at a time. Every run starts processes of its own that know nothing of any task, in a fresh
folder of baselines. Meanwhile the GPU's memory in use, all processes together, is sampled (gpu_memory.py).
"""

import multiprocessing
import tempfile
import time
from contextlib import nullcontext
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from core.tasks.task import Task
from tests.benchmarks.gpu_memory import Sampler
from tests.benchmarks.judge_cpu import wrong

FOLDER = Path(__file__).parent / "gpu_tasks"
CLASSES = {
    "huge": ("huge_relu", "huge_sigmoid", "huge_softmax"),
    "norm": ("layer_norm", "rms_norm", "row_sum"),
    "matmul": ("matmul_square", "matmul_large_k", "matmul_batched"),
    "fusion": ("linear_relu", "linear_swish_scale", "linear_clamp_divide"),
}
FIRST_SLOT = 10


def task_of(name: str) -> Task:
    return Task(task_id=f"bench/{name}", name=name, level=1, origin="bench", source=(FOLDER / f"{name}.py").read_text())


def candidates(name: str) -> dict[str, str]:
    right = (FOLDER / f"{name}_triton.py").read_text()
    return {"right": right, "wrong": wrong(right, 0)}


def _worker(slot: int, device: str, profile: str, folder: str, end: Connection) -> None:
    """One process of the judge: its own CUDA context, zygotes and tasks. Takes names, answers with verdicts."""
    import torch

    torch.set_num_threads(1)
    from core.evaluation.gpu.stage import GpuSettings, GpuStage
    from core.evaluation.walls import sandbox

    walls = sandbox.probe()
    stage = GpuStage(GpuSettings(device=device, profile=profile, baseline_folder=folder), walls, slot=slot)
    stage.start()
    torch.zeros(1, device=device)
    stage.wait_ready()
    end.send(walls.describe())
    while (name := end.recv()) is not None:
        found = []
        for side, source in candidates(name).items():
            verdict = stage.judge(task_of(name), source, f"{name}/{side}")
            result = stage.measured if verdict.kind == "pass" else None
            found.append({
                "task": name, "side": side, "kind": verdict.kind, "category": verdict.category, "worker": slot,
                "wall_s": verdict.wall_s, "runtime_ms": verdict.runtime_ms, "baseline_ms": verdict.baseline_ms,
                "speedup": verdict.speedup, "speedup_low": verdict.speedup_low, "screens": verdict.screens,
                "feedback": verdict.feedback,
                "spent_s": {key: round(value, 3) for key, value in stage.spent_s.items()},
                "peak_gb": {key: round(value, 1) for key, value in stage.peak_gb.items()},
                **({"clock": result.clock, "drift": round(result.drift, 4), "width": round(result.width, 4),
                    "calls": result.calls, "rounds": result.rounds, "remade": result.remade,
                    "floor_ms": result.floor_ms} if result else {}),
            })  # fmt: skip
        end.send(found)
    stage.stop()


def judged(names: list[str], workers: int, huge_at_once: int, device: str, profile: str) -> dict[str, Any]:
    """All verdicts of these tasks, and the time from the first task's source to the last verdict."""
    context = multiprocessing.get_context("spawn")
    on_gpu = device != "cpu"
    with tempfile.TemporaryDirectory() as folder, Sampler(int(device[5:] or 0)) if on_gpu else nullcontext() as memory:
        ends: dict[Any, Any] = {}
        started = time.monotonic()
        for index in range(min(workers, len(names))):
            ours, theirs = context.Pipe()
            arguments = (FIRST_SLOT + 4 * index, device, profile, folder, theirs)
            process = context.Process(target=_worker, args=arguments)
            process.start()
            theirs.close()
            ends[ours] = process
        walls = [end.recv() for end in ends]
        start_s = time.monotonic() - started
        started = time.monotonic()
        verdicts, ended_s = _handed_out(list(ends), names, huge_at_once, started)
        for end, process in ends.items():
            end.send(None)
            process.join(60)
    return {
        "verdicts": verdicts, "wall_s": ended_s, "start_s": start_s, "walls": walls[0],
        "peak_gb": memory.peak_gb if memory else 0.0, "workers": len(ends),
    }  # fmt: skip


def _handed_out(ends: list[Any], names: list[str], huge_at_once: int, started: float) -> tuple[list[Any], float]:
    waiting, doing = list(names), {}
    verdicts: list[dict[str, Any]] = []
    idle = list(ends)
    while waiting or doing:
        for end in list(idle):
            huge = sum(name in CLASSES["huge"] for name in doing.values())
            fits = [name for name in waiting if huge < huge_at_once or name not in CLASSES["huge"]]
            if not fits:
                break
            doing[end] = fits[0]
            waiting.remove(fits[0])
            idle.remove(end)
            end.send(fits[0])
        answering: list[Any] = wait(list(doing), timeout=300)
        for end in answering:
            verdicts += end.recv()
            del doing[end]
            idle.append(end)
    return verdicts, time.monotonic() - started
