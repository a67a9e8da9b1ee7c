"""Verdicts per hour of the GPU tier beside the usual way: `python -m tests.benchmarks.judge_gpu` prints one JSON line.

The fixed mix (gpu_tasks/): three elementwise tasks of 1.6 G elements, three norms and reductions, three products, three
fusions; each with a right candidate and one whose stores are wrong. The whole mix by `--workers` processes, and with
`--classes` each class alone by as many; every run starts from nothing known of a task. Processes are started, and have
judged a tiny task (gpu.warm), before the clock is, as they have in a run; only the GPU tier is counted: the CPU tier
runs on other cores and ahead of it.

The usual way (naive_gpu.py) takes one candidate after the other: 5 correctness and 100 timing trials, a fresh Python
each. To fit the call's time, of the huge tasks `--naive-huge-trials` correctness trials are run and the others counted
at their mean, and the timed reference takes the timed candidate's inputs, counted twice; past `--naive-budget-s` a
wrong huge candidate is counted from its right one's trials. What was counted and not run is in the JSON (`counted`).
With these defaults an H200 takes about 340 s for all of it: 35 s to start and 30 s for the mix, 20 s for do_bench,
150 s for the usual way's small candidates, which use the budget up, and 105 s for its right huge ones.
Medians of passed candidates are set beside `triton.testing.do_bench` alone on the same kernels, in a fresh process.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.benchmarks.gpu_workers import CLASSES, FOLDER, candidates, judged

CORRECTNESS, TIMING = 5, 100
SMALL_FIRST = ("norm", "matmul", "fusion", "huge")
COMPUTED = (
    "rates are verdicts / wall time of the mix in one run; a class's: its verdicts / its share of the workers' time in "
    "that run, or with --classes in a run of its own with as many workers; naive rates are candidates / the sum of "
    "their times, one after the other"
)


HUGE_GB, WORKER_GB = 23.0, 4.0
"""Device memory of a task of 1.6 G elements while it is judged; of a worker's processes and its other tasks, about: on
an H200 eight workers with three huge tasks had 119 GB at most."""


def huge_that_fit(card_gb: float, workers: int) -> int:
    """How many huge tasks may be judged at once by so many workers; one at least."""
    return int(max(1, min(len(CLASSES["huge"]), (card_gb - WORKER_GB * workers) // HUGE_GB)))


def card_gb(device: str) -> float:
    """All memory of the GPU; of a CPU, which has the machine's, as much as anybody asks for."""
    import torch

    return math.inf if device == "cpu" else torch.cuda.get_device_properties(torch.device(device)).total_memory / 1e9


def naive(huge_trials: int, budget_s: float, folder: Path) -> list[dict[str, Any]]:
    """Every candidate in a fresh Python, one after the other; seconds at 5 and 100 trials."""
    found: list[dict[str, Any]] = []
    began = time.monotonic()
    for group in SMALL_FIRST:
        for side in ("right", "wrong"):
            for name in CLASSES[group]:
                huge = group == "huge"
                if huge and side == "wrong" and time.monotonic() - began > budget_s:
                    found.append(_counted(name, found))
                    continue
                path = folder / f"{name}_{side}.py"
                path.write_text(candidates(name)[side])
                found.append(_naive_one(name, side, path, huge_trials if huge else CORRECTNESS, huge))
                print(json.dumps(found[-1]), file=sys.stderr, flush=True)
    return found


def _naive_one(name: str, side: str, path: Path, trials: int, huge: bool) -> dict[str, Any]:
    started = time.monotonic()
    out = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "naive_gpu.py"), str(FOLDER / f"{name}.py"), str(path),
         str(trials), str(TIMING), str(int(huge))], capture_output=True, text=True, check=False,
    )  # fmt: skip
    wall_s = time.monotonic() - started
    if out.returncode:
        return {"task": name, "side": side, "wall_s": wall_s, "error": out.stderr[-400:]}
    answer = json.loads(out.stdout.splitlines()[-1])
    trial_s = statistics.mean(answer["trials_s"])
    more_s = (CORRECTNESS - trials) * trial_s + answer["inputs_saved_s"]
    return {
        "task": name, "side": side, "wall_s": round(wall_s + more_s, 3), "measured_s": round(wall_s, 3),
        "right": answer["right"], "setup_s": round(answer["setup_s"], 2), "trial_s": round(trial_s, 3),
        "counted": CORRECTNESS - trials,
    }  # fmt: skip


def _counted(name: str, found: list[dict[str, Any]]) -> dict[str, Any]:
    """A wrong candidate that was not run: start, and the right one's trials."""
    right = next(one for one in found if one["task"] == name)
    wall_s = right["setup_s"] + CORRECTNESS * right["trial_s"] if "setup_s" in right else right["wall_s"]
    return {"task": name, "side": "wrong", "wall_s": round(wall_s, 3), "measured_s": 0.0, "counted": CORRECTNESS}


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


def _alone(names: list[str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.benchmarks.judge_gpu", "--bench", *names]
    out = subprocess.run(command, capture_output=True, text=True, check=False)
    if out.returncode:
        print(out.stderr[-1000:], file=sys.stderr)
        return {}
    return dict(json.loads(out.stdout.splitlines()[-1]))


def agreement(verdicts: list[dict[str, Any]], alone: dict[str, Any]) -> dict[str, Any]:
    """Our medians over do_bench's, less one, in percent."""
    return {
        one["task"]: {
            f"{side}_percent": round(100 * (one[f"{side}_ms"] / alone[one["task"]][f"{side}_ms"] - 1), 2)
            for side in ("runtime", "baseline")
        }
        for one in verdicts
        if one["kind"] == "pass" and one["task"] in alone
    }


def per_hour(verdicts: int, seconds: float) -> float:
    return 3600 * verdicts / seconds


def report(mix: dict[str, Any], classes: dict[str, Any], usual: list[dict[str, Any]]) -> dict[str, Any]:
    """Rates and ratios, of the mix and of every class."""
    ours = per_hour(len(mix["verdicts"]), mix["wall_s"])
    found: dict[str, Any] = {"verdicts_per_hour": round(ours, 1)}
    if usual:
        theirs = per_hour(len(usual), sum(one["wall_s"] for one in usual))
        found |= {"naive_verdicts_per_hour": round(theirs, 1), "ratio": round(ours / theirs, 2)}
    found["per_class"] = {}
    for group, run in (classes or shares(mix)).items():
        rate = per_hour(len(run["verdicts"]), run["wall_s"])
        one: dict[str, Any] = {"verdicts_per_hour": round(rate, 1)}
        times = [own["wall_s"] for own in usual if own["task"] in CLASSES[group]]
        if times:
            theirs = per_hour(len(times), sum(times))
            one |= {"naive_verdicts_per_hour": round(theirs, 1), "ratio": round(rate / theirs, 2)}
        one |= {"wall_s": round(run["wall_s"], 2), "peak_gb": run["peak_gb"], "as_wanted": as_wanted(run["verdicts"])}
        found["per_class"][group] = one
    return {**found, "computed": COMPUTED}


def shares(mix: dict[str, Any]) -> dict[str, Any]:
    """Every class as a run of its own, of the time that its share of the workers' time is of the mix's."""
    total = sum(one["wall_s"] for one in mix["verdicts"])
    found = {}
    for group, members in CLASSES.items():
        mine = [one for one in mix["verdicts"] if one["task"] in members]
        if mine:
            wall_s = mix["wall_s"] * sum(one["wall_s"] for one in mine) / total
            found[group] = {"verdicts": mine, "wall_s": wall_s, "peak_gb": mix["peak_gb"]}
    return found


def as_wanted(verdicts: list[dict[str, Any]]) -> int:
    wanted = {"right": "pass", "wrong": "fail"}
    return sum(found["kind"] == wanted[found["side"]] for found in verdicts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--huge-at-once", type=int, help="tasks of 1.6 G elements at once; as many as the card holds")
    parser.add_argument("--naive-huge-trials", type=int, default=1)
    parser.add_argument("--naive-budget-s", type=float, default=100.0)
    parser.add_argument("--skip-naive", action="store_true")
    parser.add_argument("--classes", action="store_true", help="each class in a run of its own too")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--profile", default="full")
    parser.add_argument("--tasks", nargs="*", help="these alone")
    parser.add_argument("--bench", nargs="*", help="(internal) names for do_bench")
    args = parser.parse_args()
    if args.bench is not None:
        print(json.dumps(bench(args.bench)))
        return
    names = args.tasks or [name for group in CLASSES.values() for name in group]
    at_once = args.huge_at_once or huge_that_fit(card_gb(args.device), args.workers)

    def run(chosen: list[str]) -> dict[str, Any]:
        found = judged(chosen, args.workers, at_once, args.device, args.profile)
        print(json.dumps(found), file=sys.stderr, flush=True)
        return found

    mix = run(names)
    classes = {}
    if args.classes and not args.tasks:
        classes = {group: run(list(members)) for group, members in CLASSES.items()}
    alone = {} if args.device == "cpu" else _alone(names)
    close = agreement(mix["verdicts"], alone)
    print(json.dumps({"do_bench": alone, "agreement": close}), file=sys.stderr, flush=True)
    usual: list[dict[str, Any]] = []
    if not args.skip_naive and not args.tasks:
        with tempfile.TemporaryDirectory() as folder:
            usual = naive(args.naive_huge_trials, args.naive_budget_s, Path(folder))
    worst = max((abs(value) for one in close.values() for value in one.values()), default=None)
    print(json.dumps({
        **_machine(args.device), **report(mix, classes, usual), "as_wanted": as_wanted(mix["verdicts"]),
        "verdicts_judged": len(mix["verdicts"]), "workers": mix["workers"], "huge_at_once": at_once,
        "walls": mix["walls"], "start_s": round(mix["start_s"], 1), "wall_s": round(mix["wall_s"], 2),
        "peak_gb": mix["peak_gb"], "worst_agreement_percent": worst, "agreement": close, "do_bench": alone,
        "verdicts": mix["verdicts"], "naive": usual, "naive_huge_trials_run": args.naive_huge_trials,
    }))  # fmt: skip


def _machine(device: str) -> dict[str, Any]:
    import torch

    from core.evaluation.gpu.baseline import driver_version

    name = device if device == "cpu" else torch.cuda.get_device_name(torch.device(device))
    versions = {"torch": str(torch.__version__), "cuda": torch.version.cuda, "driver": driver_version()}
    return {"gpu": name, "versions": versions}


if __name__ == "__main__":
    main()
