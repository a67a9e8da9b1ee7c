"""Which refused system calls NVIDIA's driver can't do without: `python -m tests.gpu.needed_calls`, on a GPU, as JSON.

Each try is a process of its own under the `compile` filter less some names: start the driver, make a context, allocate,
fill, synchronise, pin. Names are allowed one by one as long as one gets further; else all are, and taken away again.
The answer is `core.evaluation.walls.seccomp.NEEDED_BY_GPU` (prctl, fcntl, ioctl: its tests of arguments).
"""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from core.evaluation.walls import seccomp

CODE = """
import ctypes, sys
from core.evaluation.walls import linux
from core.evaluation.walls import seccomp
lib = ctypes.CDLL("libcuda.so.1")
for name in NAMES:
    seccomp.REFUSED.pop(name, None); seccomp.MEMORY.pop(name, None)
    tests = {"prctl": seccomp._PRCTL_REFUSED, "fcntl": seccomp._FCNTL_REFUSED, "ioctl": seccomp._IOCTL_REFUSED}
    tests.get(name, {}).clear()
linux.no_new_privileges()
seccomp.install("compile")
device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
pinned, size = ctypes.c_void_p(), ctypes.c_size_t(1 << 20)
steps = [
    lambda: lib.cuInit(0), lambda: lib.cuDeviceGet(ctypes.byref(device), 0),
    lambda: lib.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), lambda: lib.cuCtxSetCurrent(context),
    lambda: lib.cuMemAlloc_v2(ctypes.byref(memory), size), lambda: lib.cuMemsetD8_v2(memory, 0, size),
    lambda: lib.cuCtxSynchronize(), lambda: lib.cuMemAllocHost_v2(ctypes.byref(pinned), size),
]
for number, step in enumerate(steps):
    if step():
        print(number)
        sys.exit()
print(len(steps))
"""
DONE, WAIT_S = 8, 20.0


def reached(allowed: set[str]) -> int:
    """How many steps went well; -1 for a try that died or hung."""
    code = CODE.replace("NAMES", repr(sorted(allowed)))
    try:
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S, check=False)
    except subprocess.TimeoutExpired:
        return -1
    return int(out.stdout) if out.stdout.strip().isdigit() else -1


def main() -> None:
    names = [*seccomp.REFUSED, *seccomp.MEMORY, "prctl", "fcntl", "ioctl"]
    needed: set[str] = set()
    at, everything = reached(needed), reached(set(names))
    found = {"nothing_allowed": at, "everything_allowed": everything}
    while at < DONE <= everything:
        with ThreadPoolExecutor(8) as pool:
            steps = list(pool.map(reached, [needed | {name} for name in names]))
        if max(steps) <= at:
            needed = set(names)
            for name in names:
                needed -= {name} if reached(needed - {name}) >= DONE else set()
            break
        at = max(steps)
        needed.add(names[steps.index(at)])
    print(json.dumps({**found, "needed": sorted(needed)}))


if __name__ == "__main__":
    main()
