"""Does torch's profiler see kernels inside a candidate's walls: `python -m tests.gpu.profiler_in_the_walls`, on a GPU.

Prints JSON: the kernels that the profiler shows in a plain process; in one under the `gpu` filter of system calls; in a
real child (walls, device files, /proc, a user of its own). Where the filter is what stops it, names are allowed one by
one as long as one gets further (as needed_calls), and `needed` are candidates for seccomp.NEEDED_BY_GPU. `ready_s` is
what the first use of the profiler takes, `after_ms` what a small kernel takes before and after it.
"""

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from core.evaluation.gpu.spawn import ChildFailed, GpuZygote
from core.evaluation.walls import sandbox, seccomp

CODE = """
import json, time, torch
from core.evaluation.gpu import profile as gpu_profile
from core.evaluation.walls import linux
from core.evaluation.walls import seccomp
FILTER
x = torch.ones(1 << 20, device="cuda")
y = torch.relu(x)
torch.cuda.synchronize()
def small():
    started = time.perf_counter()
    for _ in range(200):
        torch.relu(x)
    torch.cuda.synchronize()
    return (time.perf_counter() - started) * 5
before = small()
started = time.perf_counter()
gpu.profile.rows("cuda", lambda: None)
ready = time.perf_counter() - started
found = gpu.profile.rows("cuda", lambda: torch.relu(x))
print(json.dumps({"rows": found[1], "ready_s": ready, "before_ms": before, "after_ms": small()}))
"""
FILTER = """
for name in NAMES:
    seccomp.REFUSED.pop(name, None); seccomp.MEMORY.pop(name, None)
linux.no_new_privileges()
seccomp.install("gpu")
"""
CANDIDATE = """
import torch
import triton
import triton.language as tl
@triton.jit
def own_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at) * 2)
class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.x = torch.ones(1 << 20, device="cuda")
    def forward(self):
        out = torch.empty_like(self.x)
        own_kernel[(1024,)](self.x, out, BLOCK=1024)
        return ()
"""
WAIT_S = 90.0


def tried(lines: str) -> dict[str, Any]:
    """What the code answers in a process of its own."""
    code = CODE.replace("FILTER", lines)
    try:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S, check=False)
    except subprocess.TimeoutExpired:
        return {"trouble": "hangs"}
    last = done.stdout.strip().splitlines()[-1:]
    return json.loads(last[0]) if last and last[0].startswith("{") else {"trouble": (done.stderr or done.stdout)[-600:]}


def under_filter(names: set[str]) -> dict[str, Any]:
    return tried(FILTER.replace("NAMES", repr(sorted(names))))


def needed() -> list[str]:
    """Calls without which the profiler shows nothing; all must be allowed together, then each is taken away."""
    names = {*seccomp.REFUSED, *seccomp.MEMORY}
    if not under_filter(names).get("rows"):
        return ["(not a matter of these calls)"]
    with ThreadPoolExecutor(4) as pool:
        shown = list(pool.map(lambda name: bool(under_filter({name}).get("rows")), ordered := sorted(names)))
    alone = [name for name, good in zip(ordered, shown, strict=True) if good]
    if alone:
        return alone[:1]
    left = names
    for size in (16, 4, 1):
        groups = [sorted(left)[at : at + size] for at in range(0, len(left), size)]
        for group in groups:
            if under_filter(left - set(group)).get("rows"):
                left -= set(group)
    return sorted(left)


def in_a_child() -> dict[str, Any]:
    """The whole way: walls, watch, import, construct, profile, ghost."""
    zygote = GpuZygote(sandbox.probe(), slot=96)
    zygote.start()
    try:
        zygote.wait_ready()
        zygote.begin(
            sandbox.Limits(memory_mb=16384, wall_s=60, tmp_mb=512, threads=512, allow_processes=True, device=True)
        )
        zygote.ask("start", "cuda:0")
        zygote.ask("watch", None)
        zygote.ask("import", CANDIDATE)
        zygote.ask("construct", ["list", [["list", []], ["dict", {}]]])
        zygote.ask("inputs", [[["list", []], ["dict", {}]]])
        filled = zygote.ask("poison", [4 << 20], 0xFF)
        zygote.ask("call", 0, False, False)
        started = time.perf_counter()
        zygote.ask("profiler")
        ready = time.perf_counter() - started
        block, alone, launches = zygote.ask("profile", 0, [], [])
        ghost = zygote.ask("ghost", 0, False)
        return {
            "poisoned": filled, "ready_s": ready, "block": block, "alone": alone, "launches": launches,
            "held_back": ghost[1],
        }  # fmt: skip
    except ChildFailed as failed:
        return {"trouble": str(failed)}
    finally:
        zygote.stop()


def main() -> None:
    found: dict[str, Any] = {"plain": tried(""), "filter": under_filter(set()), "child": in_a_child()}
    if found["plain"].get("rows") and not found["filter"].get("rows"):
        found["needed"] = needed()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
