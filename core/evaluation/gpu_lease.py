"""Who may use a GPU when: one process measures alone, or several do other work on it at once.

    with lease(device, alone=True):   timed blocks: nobody else's copies and comparisons run on this GPU
    with lease(device):               outputs copied and compared

File locks, one per GPU of a machine: the kernel lets go of them when a process dies. A gate keeps newcomers out while
somebody waits to measure, so that measuring is never starved. Not covered: contexts that are made, and a candidate's
first call, which compiles for a second and uses the GPU for a moment; what it disturbs shows as outliers.
"""

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def lease(device: str, alone: bool = False) -> Iterator[None]:
    """Wait for the GPU; never take one inside another."""
    name = "cpu"
    if device != "cpu":
        name = str(torch.cuda.get_device_properties(torch.device(device).index or 0).uuid)
    path = os.path.join(tempfile.gettempdir(), f"kernelmill-{os.getuid()}-gpu-{name}")
    with open(f"{path}.gate", "w") as gate, open(path, "w") as lock:
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(lock, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        yield
