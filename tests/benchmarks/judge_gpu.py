"""Verdicts per hour of the GPU tier beside the usual way: `python -m tests.benchmarks.judge_gpu` prints one JSON line.

The fixed mix (gpu_tasks/): three elementwise tasks of 1.6 G elements, three norms and reductions, three products, three
fusions; each with a right candidate and one whose stores are wrong. The usual way (naive_gpu.py) runs 5 correctness and
100 timing trials; for the huge tasks `--naive-huge-trials` correctness trials are run and the rest is counted at their
mean, and the timed reference takes the timed candidate's inputs, counted twice. Both sides start from nothing known of
a task; ours keeps its processes between candidates, as it does in a run. Medians of passed candidates are set beside
`triton.testing.do_bench` alone on the same kernels, in a fresh process. Only the GPU tier is counted: the CPU tier runs
on other cores and ahead of it.
"""

import argparse
import json
import multiprocessing
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from core.tasks.task import Task
from tests.benchmarks.judge_cpu import wrong

FOLDER = Path(__file__).parent / "gpu_tasks"
CLASSES = {
    "huge": ("huge_relu", "huge_sigmoid", "huge_softmax"),
    "norm": ("layer_norm", "rms_norm", "row_sum"),
    "matmul": ("matmul_square", "matmul_large_k", "matmul_batched"),
    "fusion": ("linear_relu", "linear_swish_scale", "linear_clamp_divide"),
}
CORRECTNESS, TIMING = 5, 100
WALLS = ("namespaces-unfiltered", "namespaces", "basic-unfiltered", "basic")
"""Unfiltered: without seccomp, under which the driver does not start yet (core/evaluation/seccomp.py)."""


def task_of(name: str) -> Task:
    return Task(task_id=f"bench/{name}", name=name, level=1, origin="bench", source=(FOLDER / f"{name}.py").read_text())


def candidates(name: str) -> dict[str, str]:
    right = (FOLDER / f"{name}_triton.py").read_text()
    return {"right": right, "wrong": wrong(right, 0)}


def _worker(names: list[str], slot: int, chosen: str, results: Any, ready: Any, go: Any) -> None:
    """One process of the judge: its own CUDA context, zygotes and tasks."""
    import msgspec
    import torch

    from core.evaluation import sandbox
    from core.evaluation.gpu_stage import GpuSettings, GpuStage

    walls = sandbox.probe("basic" if chosen.startswith("basic") else "namespaces")
    if chosen.endswith("unfiltered"):
        walls = msgspec.structs.replace(walls, seccomp=False)
    stage = GpuStage(GpuSettings(), walls, slot=slot)
    stage.start()
    torch.zeros(1, device="cuda")
    stage.wait_ready()
    ready.put(walls.describe())
    go.wait()
    for name in names:
        for side, source in candidates(name).items():
            verdict = stage.judge(task_of(name), source, f"{name}/{side}")
            found = {
                "task": name, "side": side, "kind": verdict.kind, "category": verdict.category,
                "wall_s": verdict.wall_s, "runtime_ms": verdict.runtime_ms, "baseline_ms": verdict.baseline_ms,
                "speedup": verdict.speedup, "speedup_low": verdict.speedup_low, "feedback": verdict.feedback,
                "spent_s": {key: round(value, 3) for key, value in stage.spent_s.items()},
                "clock": stage.measured.clock if verdict.kind == "pass" and stage.measured else "",
                "drift": round(stage.measured.drift, 4) if verdict.kind == "pass" and stage.measured else None,
                "peak_gb": {key: round(value, 1) for key, value in stage.peak_gb.items()},
            }  # fmt: skip
            results.put(found)
    stage.stop()
    results.put(None)


def ours(workers: int, walls_wanted: str) -> dict[str, Any]:
    """All verdicts, and the time from the first task's source to the last verdict."""
    context = multiprocessing.get_context("spawn")
    results, ready, go = context.Queue(), context.Queue(), context.Event()
    huge = list(CLASSES["huge"])
    others = [name for group, names in CLASSES.items() if group != "huge" for name in names]
    shares = [huge, *(others[index :: workers - 1] for index in range(workers - 1))] if workers > 1 else [huge + others]
    processes = [
        context.Process(target=_worker, args=(share, 10 + 4 * index, walls_wanted, results, ready, go))
        for index, share in enumerate(shares)
    ]
    started = time.monotonic()
    for process in processes:
        process.start()
    walls = [ready.get(timeout=120) for _ in processes]
    start_s = time.monotonic() - started
    go.set()
    started = time.monotonic()
    verdicts, ended = [], 0
    while ended < len(processes):
        found = results.get(timeout=180)
        if found is None:
            ended += 1
        else:
            verdicts.append(found)
            last = time.monotonic()
    for process in processes:
        process.join(30)
    return {"verdicts": verdicts, "wall_s": last - started, "start_s": start_s, "walls": walls[0]}


def naive(huge_trials: int, folder: Path) -> list[dict[str, Any]]:
    """Every candidate in a fresh Python, one after the other; seconds at 5 and 100 trials."""
    found = []
    for group, names in CLASSES.items():
        for name in names:
            for side, source in candidates(name).items():
                path = folder / f"{name}_{side}.py"
                path.write_text(source)
                trials = huge_trials if group == "huge" else CORRECTNESS
                started = time.monotonic()
                out = subprocess.run(
                    [sys.executable, str(Path(__file__).parent / "naive_gpu.py"), str(FOLDER / f"{name}.py"), str(path),
                     str(trials), str(TIMING), str(int(group == "huge"))], capture_output=True, text=True, check=False,
                )  # fmt: skip
                wall_s = time.monotonic() - started
                if out.returncode:
                    found.append({"task": name, "side": side, "wall_s": wall_s, "error": out.stderr[-400:]})
                    continue
                answer = json.loads(out.stdout.splitlines()[-1])
                more_s = (CORRECTNESS - trials) * statistics.mean(answer["trials_s"]) + answer["inputs_saved_s"]
                found.append({
                    "task": name, "side": side, "wall_s": round(wall_s + more_s, 3), "measured_s": round(wall_s, 3),
                    "right": answer["right"], "setup_s": round(answer["setup_s"], 2),
                    "trial_s": round(statistics.mean(answer["trials_s"]), 3),
                })  # fmt: skip
    return found


def bench(names: list[str]) -> dict[str, Any]:
    """do_bench's medians of candidates and eager references, alone on the GPU."""
    import torch
    from triton.testing import do_bench

    from tests.benchmarks.naive_gpu import load

    torch.set_grad_enabled(False)
    found = {}
    for name in names:
        task, own = load(str(FOLDER / f"{name}.py"), name), load(str(FOLDER / f"{name}_triton.py"), f"{name}_own")
        with torch.device("cuda"):
            inputs = task.get_inputs()
            models = own.ModelNew(*task.get_init_inputs()), task.Model(*task.get_init_inputs())
        medians = [do_bench(lambda m=model, x=inputs: m(*x), return_mode="median", rep=200) for model in models]
        found[name] = {"runtime_ms": medians[0], "baseline_ms": medians[1]}
        del inputs
        torch.cuda.empty_cache()
    return found


def _per_hour(walls: list[float]) -> float:
    return 3600 * len(walls) / sum(walls)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--naive-huge-trials", type=int, default=1)
    parser.add_argument("--walls", choices=WALLS, default=WALLS[0], help="at most")
    parser.add_argument("--skip-naive", action="store_true")
    parser.add_argument("--bench", nargs="*", help="(internal) names for do_bench")
    args = parser.parse_args()
    if args.bench is not None:
        print(json.dumps(bench(args.bench)))
        return
    mine = ours(args.workers, args.walls)
    print(json.dumps({"ours": mine}), file=sys.stderr, flush=True)
    names = [name for group in CLASSES.values() for name in group]
    out = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.judge_gpu", "--bench", *names], capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    alone = json.loads(out.stdout.splitlines()[-1]) if not out.returncode else {}
    if out.returncode:
        print(out.stderr[-1000:], file=sys.stderr)
    agreement = {}
    for found in mine["verdicts"]:
        right = alone.get(found["task"])
        if found["kind"] == "pass" and right:
            agreement[found["task"]] = {
                side: round(found[side] / right[side] - 1, 4) for side in ("runtime_ms", "baseline_ms")
            }
    print(json.dumps({"do_bench": alone, "agreement": agreement}), file=sys.stderr, flush=True)
    usual: list[dict[str, Any]] = []
    good = sum(found["kind"] == ("pass" if found["side"] == "right" else "fail") for found in mine["verdicts"])
    if not args.skip_naive and good >= len(mine["verdicts"]) - 2:
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            usual = naive(args.naive_huge_trials, Path(folder))
    import torch

    wanted = {"right": "pass", "wrong": "fail"}
    report: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(),
        "versions": {"torch": torch.__version__, "cuda": torch.version.cuda},
        "workers": args.workers, "walls": mine["walls"], "start_s": round(mine["start_s"], 1),
        "wall_s": round(mine["wall_s"], 2),
        "verdicts_per_hour": round(3600 * len(mine["verdicts"]) / mine["wall_s"]),
        "as_wanted": sum(found["kind"] == wanted[found["side"]] for found in mine["verdicts"]),
        "verdicts": mine["verdicts"], "do_bench": alone, "agreement": agreement, "naive": usual,
        "naive_huge_trials_run": args.naive_huge_trials,
    }  # fmt: skip
    if usual:
        walls = [found["wall_s"] for found in usual]
        report["naive_verdicts_per_hour"] = round(_per_hour(walls), 1)
        report["ratio"] = round(report["verdicts_per_hour"] / _per_hour(walls), 2)
        report["per_class"] = {}
        for group, members in CLASSES.items():
            own = [found["wall_s"] for found in mine["verdicts"] if found["task"] in members]
            theirs = [found["wall_s"] for found in usual if found["task"] in members]
            # One verdict's own time, as if nothing ran beside it: the overlap of workers counts in the mix alone.
            report["per_class"][group] = {
                "verdicts_per_hour_one_worker": round(_per_hour(own)), "naive": round(_per_hour(theirs), 1),
                "ratio_one_worker": round(_per_hour(own) / _per_hour(theirs), 2),
            }  # fmt: skip
    print(json.dumps(report))


if __name__ == "__main__":
    main()
