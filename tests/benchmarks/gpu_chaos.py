"""Good candidates among harmful ones on one GPU: `python -m tests.benchmarks.gpu_chaos` prints one JSON line.

200 candidates in a random order (gpu_chaos_kinds.py): right ones, illegal accesses, endless kernels, all memory taken,
processes killed from outside, processes that exit, wrong ones; several workers on one GPU. Before that, in a calm run
of the same workers, each right candidate is timed several times: the interval of its medians, widened by `--slack`, is
its usual one. `ok` is true when every good one passed with its timing in its usual interval.

`--device cpu` runs the whole way without a GPU: there, timings say little and don't count in `ok`.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import queue
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from tests.benchmarks.gpu_chaos_kinds import Job, as_wanted, mix, tasks

STALLED_S, LOOK_S = 240.0, 5.0
MOST_LOST = 20


def _kill_later(zygote: Any, level: str, after_s: float, killed: list[int], ended: threading.Event) -> None:
    """From outside: SIGKILL to the candidate's process, some time after it was begun."""
    from core.evaluation.gpu import processes as gpu_processes

    give_up = time.monotonic() + 60
    # A child that was forked ahead is nobody's yet.
    while time.monotonic() < give_up and (not zygote.running or zygote.forked_ahead):
        if ended.wait(0.01):
            return
    if ended.wait(after_s):
        return
    below = gpu_processes.below(zygote.pid)
    if level == "namespaces":  # the zygote has a parent outside
        inner = {process.pid for process in below} & {p.pid for p in _children(zygote.pid)}
        below = {process for process in below if process.pid not in inner}
    for process in below:
        killed.append(process.pid)
        gpu_processes.kill([process], wait_s=0.0)


def _children(pid: int) -> list[Any]:
    from core.evaluation.gpu import processes as gpu_processes

    inside = gpu_processes.below(pid)
    return [process for process in inside if not any(process in gpu_processes.below(other.pid) for other in inside)]


def _worker(number: int, args: Any, folder: str, work: Any, results: Any, ready: Any) -> None:
    """One process of the judge, as an evaluator has several."""
    import msgspec
    import torch

    from core.evaluation.gpu import probe as gpu_probe
    from core.evaluation.gpu.health import ContextLost, GpuHealth, GpuUnfit
    from core.evaluation.gpu.lease import lease
    from core.evaluation.gpu.stage import GpuSettings, GpuStage
    from core.evaluation.walls import sandbox

    walls = sandbox.probe("basic" if args.walls == "basic" else "namespaces")
    settings = GpuSettings(device=args.device, wall_s=args.wall, own_work=args.device != "cpu")
    stage = GpuStage(settings, walls, slot=200 + 4 * number)
    stage.start()
    if args.device != "cpu":
        torch.zeros(1, device=args.device)
    stage.wait_ready()
    health = GpuHealth(
        args.device,
        probe=lambda: gpu_probe.warm(stage.candidates, args.device, args.probe_mb),
        prober=stage.candidates,
        keep=[stage.baselines, stage.candidates],
        guard=lambda: lease(args.device),
        folder=Path(folder),
    )
    stage.watch_quiet(health.quiet)
    ready.put(number)
    while (message := work.get()) is not None:
        if message == "calibrate":
            health.quiet.calibrate()
            ready.put(number)
            continue
        results.put({"took": number, "message": message})
        job: Job = msgspec.msgpack.decode(message, type=Job)
        stage.settings = msgspec.structs.replace(
            settings, wall_s=args.endless_wall if job.kind == "endless" else args.wall
        )
        started, killed, ended = time.monotonic(), [], threading.Event()
        killer = None
        if job.kind == "killed":
            killer = threading.Thread(
                target=_kill_later,
                args=(stage.candidates, walls.level, job.kill_after_s, killed, ended),
            )
            killer.start()
        found: dict[str, Any] = {"key": job.key, "kind": job.kind, "task": job.task.name, "worker": number}
        attempts: list[str] = []

        def judge(job: Job = job, attempts: list[str] = attempts) -> Any:
            verdict = stage.judge(job.task, job.source, job.key)
            attempts.append(verdict.category or verdict.kind)
            return verdict

        try:
            verdict = health.run(judge)
            found |= {
                "verdict": verdict.kind, "category": verdict.category, "runtime_ms": verdict.runtime_ms,
                "baseline_ms": verdict.baseline_ms, "speedup_low": verdict.speedup_low,
                "feedback": "" if verdict.kind == "pass" else verdict.feedback[:160],
            }  # fmt: skip
        except ContextLost as error:  # as an evaluator's worker does: end, and another one judges the candidate
            ended.set()
            results.put({"lost": number, "key": job.key, "why": str(error)[:300]})
            break
        except (GpuUnfit, RuntimeError, TimeoutError) as error:
            found |= {"verdict": "none", "category": type(error).__name__, "feedback": str(error)[:300]}
        ended.set()
        if killer is not None:
            killer.join()
        now = time.monotonic()
        found |= {"began": started, "ended": now, "wall_s": round(now - started, 3), "attempts": attempts}
        found["killed"] = len(killed)
        if (measured := stage.measured) is not None:
            found |= {"clock": measured.clock, "remade": measured.remade, "width": round(measured.width, 4)}
        found["spent_s"] = {name: round(value, 2) for name, value in stage.spent_s.items()}
        results.put(found)
        if found["category"] != "GpuUnfit":
            with contextlib.suppress(GpuUnfit):
                health.recover()
    else:
        seen = health.quiet
        results.put({
            "quiet_waited_s": round(seen.waited_s, 2), "measured_again": seen.measured_again,
            "blocks_again": seen.blocks_again,
        })  # fmt: skip
    stage.stop()


class Workers:
    """The judge's processes, each with a queue of its own; one that is lost is replaced, and its candidate judged by
    the one that takes its place. `target` is called with (number, args, folder, work, results, ready)."""

    def __init__(self, count: int, args: Any, folder: str, target: Any = _worker) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._args, self._folder, self._target = args, folder, target
        self._results, self.ready = self._context.Queue(), self._context.Queue()
        self.queues = [self._context.Queue() for _ in range(count)]
        self._taken: dict[int, bytes] = {}
        self.lost: list[str] = []
        """Why each one that was lost was."""
        self._processes = [self._started(number) for number in range(count)]

    def _started(self, number: int) -> Any:
        arguments = (number, self._args, self._folder, self.queues[number], self._results, self.ready)
        process = self._context.Process(target=self._target, args=arguments)
        process.start()
        return process

    def collect(self, count: int) -> list[dict[str, Any]]:
        """So many answers, told on stderr as they come: a run that is cut off is not lost."""
        found: list[dict[str, Any]] = []
        heard = time.monotonic()
        while len(found) < count:
            try:
                message = self._results.get(timeout=LOOK_S)
            except queue.Empty:
                for number, process in enumerate(self._processes):
                    if not process.is_alive():
                        self._replace(number, f"ended with {process.exitcode}")
                if time.monotonic() - heard > STALLED_S:
                    raise TimeoutError(f"no worker answered for {STALLED_S:.0f} s: {len(found)} of {count}") from None
                continue
            heard = time.monotonic()
            if "took" in message:
                self._taken[message["took"]] = message["message"]
                continue
            print(json.dumps(message), file=sys.stderr, flush=True)
            if "lost" in message:
                self._replace(message["lost"], message["why"])
            else:
                self._taken.pop(message.get("worker", -1), None)
                found.append(message)
        return found

    def _replace(self, number: int, why: str) -> None:
        self.lost.append(why)
        if len(self.lost) > MOST_LOST:
            raise RuntimeError(f"{len(self.lost)} workers were lost, the last: {why}")
        self._processes[number].join(60)
        self._end(self._processes[number])
        if number in self._taken:
            self.queues[number].put(self._taken.pop(number))
        self._processes[number] = self._started(number)

    @staticmethod
    def _end(process: Any) -> None:
        if process.is_alive():
            os.kill(process.pid or 0, signal.SIGKILL)

    def stop(self, wait_s: float = 0.0) -> None:
        """All of them, however they are, after as long a wait."""
        for process in self._processes:
            process.join(wait_s)
            self._end(process)


def _share_out(jobs: list[Job], workers: int) -> list[list[Job]]:
    """Each worker mostly has tasks of its own, as evaluators that are asked by groups have."""
    names = sorted({job.task.name for job in jobs})
    shares: list[list[Job]] = [[] for _ in range(workers)]
    for job in jobs:
        shares[names.index(job.task.name) % workers].append(job)
    while len(longest := max(shares, key=len)) > len(shortest := min(shares, key=len)) + 2:
        shortest.append(longest.pop())
    return shares


def usual_intervals(calm: list[dict[str, Any]], slack: float) -> dict[str, dict[str, Any]]:
    """Task -> the interval of its medians in the calm run, widened by `slack` of the median on both sides."""
    found = {}
    for name in sorted({entry["task"] for entry in calm}):
        times = [entry["runtime_ms"] for entry in calm if entry["task"] == name and entry["runtime_ms"]]
        if times:
            more = slack * statistics.median(times)
            found[name] = {
                "low_ms": min(times) - more, "high_ms": max(times) + more, "median_ms": statistics.median(times),
                "calm_ms": [round(value, 5) for value in times],
            }  # fmt: skip
    return found


def recoveries(verdicts: list[dict[str, Any]], kinds: tuple[str, ...]) -> list[float]:
    """Seconds from the end of each harmful candidate to the next good verdict that was begun after it."""
    good = sorted((entry["ended"], entry["began"]) for entry in verdicts if entry["verdict"] == "pass")
    faults = [entry["ended"] for entry in verdicts if entry["kind"] in kinds]
    waits = []
    for at in faults:
        later = [ended for ended, began in good if began >= at]
        if later:
            waits.append(min(later) - at)
    return waits


def beside(entry: dict[str, Any], verdicts: list[dict[str, Any]]) -> dict[str, int]:
    """How many candidates of each harmful kind were judged while `entry` was."""
    at_once = [other for other in verdicts if other["began"] < entry["ended"] and other["ended"] > entry["began"]]
    others = [other["kind"] for other in at_once if other["kind"] not in ("good", "wrong")]
    return {kind: others.count(kind) for kind in sorted(set(others))}


def _summary(values: list[float]) -> dict[str, Any]:
    if not values:
        return {"count": 0}
    return {
        "count": len(values), "median_s": round(statistics.median(values), 3), "max_s": round(max(values), 3)
    }  # fmt: skip


def report(
    args: Any, calm: list[dict[str, Any]], verdicts: list[dict[str, Any]], condition: Any, parts: dict[str, Any]
) -> dict[str, Any]:
    """Everything that is to be printed."""
    usual = usual_intervals(calm, args.slack)
    good = [entry for entry in verdicts if entry["kind"] == "good"]
    for entry in good:
        span = usual.get(entry["task"])
        inside = span is not None and entry.get("runtime_ms") is not None
        entry["in_usual"] = bool(inside and span["low_ms"] <= entry["runtime_ms"] <= span["high_ms"])  # type: ignore[index]
        entry["of_median"] = round(entry["runtime_ms"] / span["median_ms"], 4) if inside else None  # type: ignore[index]
        entry["beside"] = {} if entry["in_usual"] else beside(entry, verdicts)
    by_kind: dict[str, dict[str, int]] = {}
    for entry in verdicts:
        what = "pass" if entry["verdict"] == "pass" else entry["category"] or entry["verdict"]
        counts = by_kind.setdefault(entry["kind"], {})
        counts[what] = counts.get(what, 0) + 1
    odd = [entry for entry in verdicts if not as_wanted(entry["kind"], entry["verdict"], entry["category"])]
    passed = sum(entry["verdict"] == "pass" for entry in good)
    in_usual = sum(entry["in_usual"] for entry in good)
    return {
        "ok": passed == len(good) and (args.device == "cpu" or in_usual == passed),
        "device": parts["device"], "workers": args.workers, "walls": parts["walls"], "seed": args.seed,
        "candidates": len(verdicts), "wall_s": parts["wall_s"], "calm_s": parts["calm_s"], "start_s": parts["start_s"],
        "good": len(good), "good_passed": passed, "good_in_usual_interval": in_usual, "as_wanted":
        len(verdicts) - len(odd), "by_kind": by_kind, "usual": usual,
        "infra": sum(entry["verdict"] in ("infra", "none") for entry in verdicts),
        "workers_lost": parts["lost"],
        "judged_again": condition.again, "timed_again": sum(one["measured_again"] for one in parts["ends"]),
        "blocks_again": sum(one["blocks_again"] for one in parts["ends"]),
        "quiet_waited_s": round(sum(one["quiet_waited_s"] for one in parts["ends"]), 2),
        "faults": condition.faults, "quarantines": condition.quarantines, "probes_passed": condition.probes_passed,
        "probes_failed": condition.probes_failed, "ghosts": condition.ghosts, "leaked_mb": condition.leaked_mb,
        "state": condition.state, "probe_s": _summary(condition.probe_s),
        "quarantine_s": _summary(condition.recovery_s),
        "fault_to_next_good_s": _summary(recoveries(verdicts, ("illegal", "endless", "memory", "killed", "exit"))),
        "odd": [{name: entry.get(name) for name in ("key", "verdict", "category", "feedback", "attempts")}
                for entry in odd],
        "good_verdicts": [
            {name: entry.get(name) for name in ("key", "verdict", "category", "runtime_ms", "speedup_low", "in_usual",
                                                "of_median", "beside", "wall_s", "attempts", "worker", "clock",
                                                "remade", "width")}
            for entry in good
        ],
        "spent_s": _spent(verdicts),
    }  # fmt: skip


def _spent(verdicts: list[dict[str, Any]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for entry in verdicts:
        for name, value in entry["spent_s"].items():
            total[name] = round(total.get(name, 0.0) + value, 2)
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda:0", help="cuda:0 or cpu")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=5, help="of each right candidate in the calm run")
    parser.add_argument("--slack", type=float, default=0.03, help="widens the usual interval, a share of the median")
    parser.add_argument("--wall", type=float, default=20.0, help="seconds for a candidate")
    parser.add_argument("--endless-wall", type=float, default=5.0, help="seconds for an endless one")
    parser.add_argument("--probe-mb", type=int, default=256)
    parser.add_argument("--walls", choices=("namespaces", "basic"), default="namespaces", help="at most")
    parser.add_argument("--brief", action="store_true", help="no list of the good verdicts")
    args = parser.parse_args()
    import msgspec

    from core.evaluation.gpu import processes as gpu_processes
    from core.evaluation.gpu.shared import Shared
    from core.evaluation.walls import sandbox

    started = time.monotonic()
    known = tasks(args.device)
    jobs = mix(args.device, args.count, args.seed)
    with tempfile.TemporaryDirectory() as folder:
        workers = Workers(args.workers, args, folder)
        try:
            for _ in workers.queues:
                workers.ready.get(timeout=180)
            for work in workers.queues:  # one after the other: an idle GPU is what is to be known
                work.put("calibrate")
                workers.ready.get(timeout=60)
            start_s = time.monotonic() - started
            calm_jobs = [
                Job(key=f"calm/{name}/{index}", task=task, kind="good", source=source)
                for name, (task, source) in known.items()
                for index in range(args.repeats + 1)
            ]
            begun = time.monotonic()
            for share, work in zip(_share_out(calm_jobs, args.workers), workers.queues, strict=True):
                for job in share:
                    work.put(msgspec.msgpack.encode(job))
            calm = workers.collect(len(calm_jobs))
            calm_s = time.monotonic() - begun
            begun = time.monotonic()
            for share, work in zip(_share_out(jobs, args.workers), workers.queues, strict=True):
                for job in share:
                    work.put(msgspec.msgpack.encode(job))
            verdicts = workers.collect(len(jobs))
            wall_s = time.monotonic() - begun
            for work in workers.queues:
                work.put(None)
            ends = workers.collect(len(workers.queues))
            workers.stop(60.0)
        finally:
            workers.stop()
        condition = Shared(gpu_processes.identity(args.device), Path(folder)).look().condition
    device = args.device
    if device != "cpu":
        import torch

        device = torch.cuda.get_device_name(device)
    parts = {
        "device": device, "walls": sandbox.probe("basic" if args.walls == "basic" else "namespaces").describe(),
        "wall_s": round(wall_s, 1), "calm_s": round(calm_s, 1), "start_s": round(start_s, 1), "ends": ends,
        "lost": workers.lost,
    }  # fmt: skip
    # The first of each task in the calm run warms up: clocks, caches, the baseline's child.
    found = report(args, [entry for entry in calm if not entry["key"].endswith("/0")], verdicts, condition, parts)
    if args.brief:
        del found["good_verdicts"]
    print(json.dumps(found))


if __name__ == "__main__":
    random.seed(0)
    main()
