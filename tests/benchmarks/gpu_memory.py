"""Device memory in use on the whole GPU, all processes together, sampled beside what is measured.

    with Sampler() as sampler:
        ...
    sampler.peak_gb, sampler.above_start_gb, sampler.peaks_gb

The driver's own counter (torch.cuda.mem_get_info, else nvidia-smi) is read every few milliseconds in a process of its
own, so that neither the interpreter's lock nor an allocation that lives shorter than a phase hides a peak. The
sampler's own context is part of the figure; `start_gb` is what was in use before (the sampler's context included).

`python -m tests.benchmarks.gpu_memory TASK [TASK ...]` judges and times the tasks of gpu_tasks/ with their right and
wrong candidates in one stage, and prints one JSON line with the peak of every verdict: what must stay below 24 GB.
"""

import argparse
import json
import multiprocessing
import subprocess
import time
from typing import Any

INTERVAL_S = 0.005


def used_bytes(device: int) -> int:
    """In use on the device, by everybody."""
    import torch

    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info(device)
        return int(total - free)
    out = subprocess.run(
        ["nvidia-smi", f"--id={device}", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return int(out.stdout) * 2**20


def _sample(device: int, pipe: Any) -> None:
    """Send [start, peak] on request: any message is one for the peak since the last one; None ends."""
    used_bytes(device)
    pipe.send(used_bytes(device))
    peak = 0
    while True:
        peak = max(peak, used_bytes(device))
        if pipe.poll(INTERVAL_S):
            go_on = pipe.recv()
            pipe.send(peak)
            peak = 0
            if not go_on:
                return


class Sampler:
    """The peak while it is open, and of stretches that `mark` ends."""

    def __init__(self, device: int = 0) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_sample, args=(device, theirs), daemon=True)
        self.start_gb = 0.0
        self.peaks_gb: dict[str, float] = {}

    def __enter__(self) -> "Sampler":
        self._process.start()
        self.start_gb = self._pipe.recv() / 1e9
        return self

    def mark(self, name: str) -> float:
        """End a stretch: its peak in GB."""
        self._pipe.send(True)
        self.peaks_gb[name] = round(self._pipe.recv() / 1e9, 3)
        return self.peaks_gb[name]

    def __exit__(self, *error: Any) -> None:
        self._pipe.send(False)
        self.peaks_gb["end"] = round(self._pipe.recv() / 1e9, 3)
        self._process.join(10)

    @property
    def peak_gb(self) -> float:
        return max(self.peaks_gb.values())

    @property
    def above_start_gb(self) -> float:
        """The peak without what was in use before."""
        return self.peak_gb - self.start_gb


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*", default=["huge_relu", "huge_sigmoid", "huge_softmax", "huge_swish"])
    parser.add_argument("--limit-gb", type=float, default=24.0)
    args = parser.parse_args()
    from core.evaluation.gpu.stage import GpuSettings, GpuStage
    from core.evaluation.walls import sandbox
    from tests.benchmarks.gpu_workers import candidates, task_of

    verdicts = []
    with Sampler() as sampler:
        stage = GpuStage(GpuSettings(), sandbox.probe(), slot=60)
        stage.start()
        stage.wait_ready()
        for name in args.tasks:
            for side, source in candidates(name).items():
                started = time.monotonic()
                verdict = stage.judge(task_of(name), source, f"{name}/{side}")
                found = {
                    "task": name, "side": side, "kind": verdict.kind, "category": verdict.category,
                    "feedback": verdict.feedback, "wall_s": round(time.monotonic() - started, 3),
                    "runtime_ms": verdict.runtime_ms, "baseline_ms": verdict.baseline_ms,
                    "peak_gb": sampler.mark(f"{name}/{side}"), **stage.accounts.describe(),
                }  # fmt: skip
                print(json.dumps(found), flush=True)
                verdicts.append(found)
        stage.stop()
    right = {"right": "pass", "wrong": "fail"}
    report = {
        "start_gb": round(sampler.start_gb, 3), "peak_gb": sampler.peak_gb, "limit_gb": args.limit_gb,
        "within": sampler.peak_gb <= args.limit_gb,
        "as_wanted": sum(found["kind"] == right[str(found["side"])] for found in verdicts), "verdicts": len(verdicts),
        "peaks_gb": sampler.peaks_gb,
    }  # fmt: skip
    print(json.dumps(report))


if __name__ == "__main__":
    main()
