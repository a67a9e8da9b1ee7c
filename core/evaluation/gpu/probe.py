"""Probing a GPU from outside: a fresh process computes what we know, within a time.

    warm   a child of a zygote that stands: a third of a second with a context; what a worker does between candidates
    cold   a new interpreter: seconds; for people (POST /reset_gpu, doctor), needs no zygote

An answer that is wrong, late or absent is a failed probe, whatever the reason. A zygote that is gone is trouble of ours
that says nothing of the GPU: ZygoteError.
"""

import json
import secrets
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np

from core.evaluation import import_path
from core.evaluation.gpu.condition import Probed, short_of_memory
from core.evaluation.gpu.processes import physical
from core.evaluation.gpu.spawn import ChildFailed, GpuZygote
from core.evaluation.walls import gpu as gpu_walls
from core.evaluation.walls import sandbox

PROGRAM = Path(__file__).with_name("probe_child.py")
SIZE, STEP = 512, 2654435761
"""As in the program; a test compares them."""
MEMORY_MB = 256
WARM_S, COLD_S, ROOM_S = 20.0, 60.0, 20.0


def expected_sum(salt: int, megabytes: int) -> int:
    """Of count numbers i * STEP + salt in 64 bits with sign."""
    count = megabytes * 2**20 // 8
    total = (STEP * (count * (count - 1) // 2) + salt * count) % 2**64
    return total - 2**64 if total >= 2**63 else total


def expected_product(salt: int) -> int:
    """The weighted sum of the product, by vectors: u' (A (B v))."""
    rows = np.arange(SIZE, dtype=np.int64)
    left = (rows[:, None] * 3 + rows[None, :] * 5 + salt) % 7 - 3
    right = (rows[:, None] * 11 + rows[None, :] * 2 + salt) % 5 - 2
    return int((rows % 13) @ (left @ (right @ (rows % 17))))


def judged(answer: Any, salt: int, asked_mb: int, seconds: float) -> Probed:
    """What a probe's answer is worth: {"memory": [MB, wrong elements, sum], "product": number}."""

    def failed(why: str) -> Probed:
        return Probed(passed=False, seconds=seconds, why=why)

    try:
        megabytes, wrong, total = (int(part) for part in answer["memory"])
        product = int(answer["product"])
    except (KeyError, TypeError, ValueError):
        return failed(f"a probe's answer can't be read: {str(answer)[:100]}")
    if not 1 <= megabytes <= asked_mb:
        return failed(f"a probe answers for {megabytes} MB, asked for {asked_mb}")
    if wrong or total != expected_sum(salt, megabytes):
        return failed(f"memory does not hold what was written: {wrong} of {megabytes * 2**17} numbers differ")
    if product != expected_product(salt):
        return failed(f"a matrix product is wrong: {product} instead of {expected_product(salt)}")
    return Probed(passed=True, seconds=seconds, memory_mb=megabytes)


def warm(
    zygote: GpuZygote, device: str, memory_mb: int = MEMORY_MB, wall_s: float = WARM_S, room_s: float = ROOM_S
) -> Probed:
    """Probe in a child of `zygote`, which has no child now. Raises ZygoteError.

    A GPU whose memory is full of other candidates' is not sick: for `room_s` it is tried again.
    """
    deadline = time.monotonic() + room_s
    while not (found := _warm(zygote, device, memory_mb, wall_s)).passed and short_of_memory(found.why):
        if time.monotonic() > deadline:
            break
        time.sleep(0.25)
    return found


def _warm(zygote: GpuZygote, device: str, memory_mb: int, wall_s: float) -> Probed:
    started, salt = time.monotonic(), secrets.randbelow(1 << 30)
    limits = sandbox.Limits(
        memory_mb=16384, wall_s=wall_s, tmp_mb=64, threads=512, allow_processes=True, device=device != "cpu"
    )
    zygote.begin(limits)
    try:
        # As a candidate's path is: the same walls and the same first calls of the driver.
        zygote.ask("start", device)
        zygote.ask("import", PROGRAM.read_text())
        arguments = [["value", device], ["value", salt], ["value", memory_mb]]
        zygote.ask("construct", ["list", [["list", arguments], ["dict", {}]]])
        zygote.ask("inputs", [[["list", []], ["dict", {}]]])
        answer = zygote.ask("call", 0, False, False)
    except ChildFailed as failure:
        error = failure.error
        why = f"{error.get('type')}: {error.get('message')}" if error else str(failure)
        return Probed(passed=False, seconds=time.monotonic() - started, why=f"a probe failed: {why}"[:300])
    finally:
        if zygote.running:
            zygote.end()
    return judged(_plain(answer), salt, memory_mb, time.monotonic() - started)


def _plain(answer: Any) -> Any:
    """The child's description of its output as the value that it describes."""
    try:
        fields = answer[0][1]
        return {"memory": [part[1] for part in fields["memory"][1]], "product": fields["product"][1]}
    except (KeyError, TypeError, IndexError):
        return None


def cold(device: str, memory_mb: int = MEMORY_MB, wall_s: float = COLD_S) -> Probed:
    """Probe in a new interpreter; blocks for seconds."""
    started, salt = time.monotonic(), secrets.randbelow(1 << 30)
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/nonexistent", "OMP_NUM_THREADS": "1"}
    if device != "cpu":  # it is shown that one alone
        environment |= gpu_walls.environment(restricted=False, name=physical(device))
        device = "cuda:0"
    process = subprocess.Popen(
        [*import_path.script(), str(PROGRAM), device, str(salt), str(memory_mb)],
        env=environment,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        output, errors = process.communicate(timeout=wall_s)
    except subprocess.TimeoutExpired:
        process.kill()  # not waited for: one that is stuck in the driver may never end
        return Probed(passed=False, seconds=wall_s, why=f"a probe did not answer within {wall_s:.0f} s")
    seconds = time.monotonic() - started
    if process.returncode:
        last = (errors.strip().splitlines() or ["it said nothing"])[-1]
        return Probed(passed=False, seconds=seconds, why=f"a probe ended with {process.returncode}: {last}"[:300])
    try:
        answer = json.loads(output)
    except ValueError:
        answer = None
    return judged(answer, salt, memory_mb, seconds)
