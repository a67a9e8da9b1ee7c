"""Whether ncu can count a candidate's kernels inside its walls: `python -m tests.gpu.counters_in_the_walls`.

Prints, as one line of JSON, what the driver says of counters, what ncu printed without walls (as this user) and inside
them, and the lines that feedback would have.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from core.evaluation.gpu import counters as gpu_counters
from core.evaluation.gpu.counted import counted
from core.evaluation.gpu.spawn import ChildFailed, GpuZygote
from core.evaluation.walls import sandbox
from tests.benchmarks.gpu_workers import FOLDER

LIMITS = sandbox.Limits(memory_mb=16384, wall_s=60, tmp_mb=512, threads=512, allow_processes=True, device=True)


def main() -> None:
    task, source = (FOLDER / "layer_norm.py").read_text(), (FOLDER / "layer_norm_triton.py").read_text()
    ncu = gpu_counters.find_ncu()
    names = gpu_counters.gpu_work.Names(source, "triton").triton
    words = gpu_counters.command(ncu, names, [sys.executable])
    parameters = Path("/proc/driver/nvidia/params")
    found = {
        "ncu": ncu,
        "version": subprocess.run([ncu, "--version"], capture_output=True, text=True).stdout.splitlines()[-1:],
        "driver": gpu_counters.forbidden(parameters.read_text()) if parameters.exists() else "no parameters",
    }
    with tempfile.TemporaryDirectory() as folder:
        found["without_walls"] = _read(counted(folder, words, task, "full", source))
    walls = sandbox.probe()
    zygote = GpuZygote(walls, slot=85)
    zygote.start()
    zygote.wait_ready()
    try:
        zygote.begin(LIMITS)
        inside = [*words[:-1], sys.executable, "-I"]
        found["in_the_walls"] = _read(zygote.ask("counters", inside, task, "full", source))
    except ChildFailed as failure:
        found["in_the_walls"] = str(failure)
    finally:
        zygote.stop()
    print(json.dumps({**found, "walls": walls.describe()}))


def _read(text: str) -> dict[str, str]:
    try:
        said = gpu_counters.worded(gpu_counters.heaviest(gpu_counters.parse(text)))
    except gpu_counters.NoCountersError as error:
        said = f"none: {error}"
    return {"lines": said, "printed": text[-1500:]}


if __name__ == "__main__":
    main()
