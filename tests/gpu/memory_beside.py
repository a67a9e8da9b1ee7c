"""Whether where memory lies is a part of a kernel's time: `python -m tests.gpu.memory_beside` prints one JSON line.

The judge gives memory back and gets it anew before it times (`core.evaluation.gpu.turns`), since candidates that had
got theirs beside a process that held nearly all of the card read 4 to 10 % slower. Here the same kernel and the same
eager code (gpu_tasks/rms_norm) are timed by a process's own events, after a flush each, in states that differ in one
thing:

    calm        memory of their own, got anew each time: what different places alone do
    shifted     outputs begin inside a block of the allocator's, at no multiple of a page
    context     another process has a context and is idle
    beside      outputs got while another process holds all but `least` GiB, which then is idle
    kept        the same outputs when that process is gone
    input       the input got beside it as well, that process gone
    anew        all got anew

Figures are medians in ms and, over calm's median, ratios. `explained` is true where `kept` is slower than `anew` by
more than calm's own spread: then `anew` mends it. Where nothing is slower, chaos's slow candidates have another cause.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from tests.benchmarks.naive_gpu import load

TASKS = Path(__file__).parents[1] / "benchmarks" / "gpu_tasks"
FLUSH_BYTES = 256 * 2**20
CALLS, AGAIN = 25, 5
HOLDS = """
import sys, torch
held, block, least = [torch.zeros(1, device="cuda")], 16 << 30, float(sys.argv[1]) * 2**30
while least and block >= least:
    try:
        held.append(torch.empty(block, device="cuda", dtype=torch.uint8))
    except torch.OutOfMemoryError:
        block //= 2
torch.cuda.synchronize()
print("holds", flush=True)
sys.stdin.read()
"""
IDLE = 'import sys; print("holds", flush=True); sys.stdin.read()'
"""What stands in for it without a card."""


@contextmanager
def neighbour(least_gib: float, cpu: bool) -> Iterator[None]:
    """A process that holds all of the card but less than `least_gib`; 0: a context alone."""
    process = subprocess.Popen(
        [sys.executable, "-c", IDLE if cpu else HOLDS, str(least_gib)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert process.stdout is not None and process.stdin is not None
    try:
        if process.stdout.readline().strip() != "holds":
            raise RuntimeError("the process that is to hold memory did not get so far")
        yield
    finally:
        process.stdin.close()
        process.wait(60)


class Timed:
    """One process's kernels and memory."""

    def __init__(self, cpu: bool) -> None:
        self._cpu = cpu
        device = "cpu" if cpu else "cuda"
        task, own = (
            load(str(TASKS / "rms_norm.py"), "beside_task"),
            load(str(TASKS / "rms_norm_triton.py"), "beside_own"),
        )
        self._rows = 8 if cpu else task.ROWS
        self._width = task.WIDTH
        self._flush = torch.empty((1 << 16) if cpu else FLUSH_BYTES // 4, dtype=torch.int32, device=device)
        eager = task.Model(self._width).to(device)
        self.models: dict[str, Callable[..., Any]] = {"eager": eager}
        if not cpu:
            self.models["own"] = own.ModelNew(self._width).to(device)
        self.new_input()

    def new_input(self) -> None:
        self.x = torch.empty(0)
        self.give_back()
        self.x = torch.randn(self._rows, self._width, device="cpu" if self._cpu else "cuda")

    def give_back(self) -> None:
        if not self._cpu:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()

    @contextmanager
    def shifted(self, megabytes: int) -> Iterator[None]:
        """The next large tensors come from a block that begins with something else."""
        self.give_back()
        device = "cpu" if self._cpu else "cuda"
        block = torch.empty(self.x.nbytes + (128 << 20), dtype=torch.uint8, device=device)
        del block
        before = torch.empty((megabytes << 20) + 512, dtype=torch.uint8, device=device)
        yield
        del before

    def medians(self) -> dict[str, float]:
        """Milliseconds of a call."""
        with torch.no_grad():
            return {name: self._median(model) for name, model in self.models.items()}

    def _median(self, model: Callable[..., Any]) -> float:
        if self._cpu:
            began = time.perf_counter()
            model(self.x)
            return (time.perf_counter() - began) * 1e3
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(CALLS)]
        model(self.x)  # its memory is there
        for start, end in events:
            self._flush.zero_()
            start.record()
            model(self.x)
            end.record()
        torch.cuda.synchronize()
        return statistics.median(start.elapsed_time(end) for start, end in events)


def states(timed: Timed, least_gib: float, cpu: bool) -> Iterator[tuple[str, dict[str, float]]]:
    for _ in range(AGAIN):
        timed.give_back()
        yield "calm", timed.medians()
    for megabytes in (11, 23, 37):
        with timed.shifted(megabytes):
            yield "shifted", timed.medians()
    with neighbour(0.0, cpu):
        timed.give_back()
        yield "context", timed.medians()
    for _ in range(AGAIN - 2):
        with neighbour(least_gib, cpu):
            timed.give_back()
            yield "beside", timed.medians()
        yield "kept", timed.medians()
        timed.give_back()
        yield "anew", timed.medians()
    with neighbour(least_gib, cpu):
        timed.new_input()
    timed.give_back()
    yield "input", timed.medians()
    timed.new_input()
    yield "anew", timed.medians()


def summary(found: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Ratios over calm's median, and whether memory that was kept is slower than memory got anew."""
    told: dict[str, Any] = {}
    for name in found["calm"][0]:
        calm = [one[name] for one in found["calm"]]
        usual = statistics.median(calm)
        told[name] = {state: [round(one[name] / usual, 4) for one in times] for state, times in found.items()}
        told[name]["calm_ms"] = round(usual, 4)
        spread = (max(calm) - min(calm)) / usual
        kept, anew = (statistics.median(one[name] for one in found[state]) for state in ("kept", "anew"))
        told[name]["explained"] = (kept - anew) / usual > max(spread, 0.02)
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: that it runs, nothing else")
    parser.add_argument("--least", type=float, nargs="+", default=(16.0, 4.0), help="GiB: chaos's is 16")
    args = parser.parse_args()
    cpu = args.device == "cpu"
    timed = Timed(cpu)
    told: dict[str, Any] = {"device": "cpu" if cpu else torch.cuda.get_device_name(0)}
    for least in args.least:
        found: dict[str, list[dict[str, float]]] = {}
        try:
            for state, times in states(timed, least, cpu):
                found.setdefault(state, []).append(times)
                print(json.dumps({"least_gib": least, "state": state, **times}), file=sys.stderr, flush=True)
            told[f"least_{least:g}_gib"] = summary(found)
        except (torch.OutOfMemoryError, RuntimeError) as error:
            told[f"least_{least:g}_gib"] = {"error": str(error)[:200], "so_far": found}
            timed.new_input()
    print(json.dumps(told))


if __name__ == "__main__":
    main()
