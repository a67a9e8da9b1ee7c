"""What the chaos benchmark mixes: right candidates, and the same ones with a misdeed in front of their forward.

On a GPU the misdeeds are Triton kernels and allocations; on the CPU they are what comes nearest (a wild address, a loop
in Python, the driver's own words raised), so that the whole way can be tried without a GPU.
"""

import random
from pathlib import Path

import msgspec

from core.tasks.task import Task
from tests.benchmarks.judge_cpu import wrong

FOLDER = Path(__file__).parent / "gpu_tasks"
GPU_TASKS = ("layer_norm", "rms_norm", "linear_relu", "matmul_batched")
SHARES = {"good": 100, "illegal": 20, "endless": 12, "memory": 16, "killed": 16, "exit": 16, "wrong": 20}
"""Of 200."""
WANTED: dict[str, frozenset[str]] = {
    "good": frozenset({"pass"}),
    "illegal": frozenset({"out_of_bounds", "runtime_error", "crash"}),
    "endless": frozenset({"timeout"}),
    "memory": frozenset({"memory", "runtime_error"}),
    "killed": frozenset({"crash", "pass", "timeout"}),
    "exit": frozenset({"crash"}),
    "wrong": frozenset(),
}
"""Kind -> the verdict's category, or `pass`; any failure of the candidate's own for the empty set. One that is killed
may have been through already."""

_ILLEGAL_GPU = """
@triton.jit
def chaos_wild(x_ptr, far):
    tl.store(x_ptr + far + tl.program_id(0) * 4096, 1.0)


def chaos(x):
    chaos_wild[(64,)](x, 1 << 40)
    torch.cuda.synchronize()
"""
_ENDLESS_GPU = """
@triton.jit
def chaos_endless(flag_ptr, out_ptr):
    turns = 0
    flag = tl.load(flag_ptr, volatile=True)
    while flag == 0:
        turns += 1
        tl.store(out_ptr + tl.program_id(0), turns)
        flag = tl.load(flag_ptr, volatile=True)
    tl.store(out_ptr + tl.program_id(0), turns)


def chaos(x):
    flag = torch.zeros(1, device=x.device, dtype=torch.int32)
    out = torch.zeros(4096, device=x.device, dtype=torch.int32)
    chaos_endless[(4096,)](flag, out)
"""
_MEMORY_GPU = """
CHAOS_HELD = []


def chaos(x):
    while True:
        CHAOS_HELD.append(torch.empty(16 << 30, device=x.device, dtype=torch.uint8))
"""
_MEMORY_ONCE_GPU = """
def chaos(x):
    torch.empty(4 << 40, device=x.device, dtype=torch.uint8)
"""
_EXIT = """
def chaos(x):
    import os
    os._exit(7)
"""
_SLOW = """
def chaos(x):
    import time
    time.sleep(1.0)
"""
_ILLEGAL_CPU = """
def chaos(x):
    raise RuntimeError("CUDA error: an illegal memory access was encountered")
"""
_SEGFAULT = """
def chaos(x):
    import ctypes
    ctypes.string_at(8)
"""
_ENDLESS_CPU = """
def chaos(x):
    while True:
        pass
"""
_MEMORY_CPU = """
def chaos(x):
    torch.ones(1 << 44, dtype=torch.uint8)
"""
GPU_MISDEEDS = {
    "illegal": (_ILLEGAL_GPU,), "endless": (_ENDLESS_GPU,), "memory": (_MEMORY_GPU, _MEMORY_ONCE_GPU),
    "exit": (_EXIT,), "killed": (_SLOW,),
}  # fmt: skip
CPU_MISDEEDS = {
    "illegal": (_ILLEGAL_CPU, _SEGFAULT), "endless": (_ENDLESS_CPU,), "memory": (_MEMORY_CPU,), "exit": (_EXIT,),
    "killed": (_SLOW,),
}  # fmt: skip

_CPU_TASK = """
import torch
import torch.nn as nn
N = {size}
class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x) * {factor}
def get_inputs():
    return [torch.randn(N)]
def get_init_inputs():
    return []
"""
_CPU_RIGHT = """
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def kernel(x_ptr):
    tl.store(x_ptr, 0)


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.clamp(x, min=0) * {factor}
"""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One candidate of the mix."""

    key: str
    task: Task
    kind: str
    source: str
    kill_after_s: float = 0.0
    """For `killed`: after its child was begun."""


def _task(name: str, source: str) -> Task:
    return Task(task_id=f"chaos/{name}", name=name, level=1, origin="bench", source=source)


def tasks(device: str) -> dict[str, tuple[Task, str]]:
    """Name -> (task, right candidate)."""
    if device == "cpu":
        sizes = {"relu_small": (1 << 14, 2.0), "relu_mid": (1 << 18, 3.0)}
        return {
            name: (_task(name, _CPU_TASK.format(size=size, factor=factor)), _CPU_RIGHT.format(factor=factor))
            for name, (size, factor) in sizes.items()
        }
    return {
        name: (_task(name, (FOLDER / f"{name}.py").read_text()), (FOLDER / f"{name}_triton.py").read_text())
        for name in GPU_TASKS
    }


def with_misdeed(source: str, misdeed: str) -> str:
    """The candidate, whose forward does it first; the kernels stay as they are."""
    head, found, rest = source.partition("class ModelNew(")
    if not found:
        raise ValueError("the candidate has no class ModelNew")
    before, found, after = rest.partition("    def forward(self, ")
    if not found:
        raise ValueError("ModelNew has no forward")
    arguments, _, body = after.partition("):\n")
    first = arguments.split(",")[0].strip()
    return (
        f"{head}{misdeed}\n\nclass ModelNew({before}    def forward(self, {arguments}):\n        chaos({first})\n{body}"
    )


def mix(device: str, count: int, seed: int) -> list[Job]:
    """`count` candidates in a random order, by the shares."""
    rng = random.Random(seed)
    known = tasks(device)
    misdeeds = CPU_MISDEEDS if device == "cpu" else GPU_MISDEEDS
    total = sum(SHARES.values())
    kinds = [kind for kind, share in SHARES.items() for _ in range(max(1, round(count * share / total)))]
    rng.shuffle(kinds)
    jobs = []
    for index, kind in enumerate(kinds):
        name = list(known)[index % len(known)]
        task, right = known[name]
        source = f"{right}\n# {index}\n"
        if kind == "wrong":
            source = right.replace("min=0", "min=1") if device == "cpu" else wrong(right, 0)
        elif kind in misdeeds:
            source = with_misdeed(source, rng.choice(misdeeds[kind]))
        after_s = rng.uniform(0.1, 1.5) if kind == "killed" else 0.0
        jobs.append(Job(key=f"{index}/{kind}/{name}", task=task, kind=kind, source=source, kill_after_s=after_s))
    return jobs


def as_wanted(kind: str, verdict_kind: str, category: str) -> bool:
    """Whether this is what is to be said of such a candidate."""
    if verdict_kind not in ("pass", "fail"):
        return False
    found = "pass" if verdict_kind == "pass" else category
    return found in WANTED[kind] if WANTED[kind] else verdict_kind == "fail"
