"""In a fresh GPU child inside the walls: start ncu on one forward of a candidate, and give back what it printed.

The child itself makes no CUDA context. Inputs are those of the task's own get_inputs(), which every candidate knows.
"""

import os
import signal
import subprocess

WALL_S = 50.0
MOST_CHARS = 200_000
_SCRIPT = """
import importlib.util
import sys

import torch


def load(name):
    spec = importlib.util.spec_from_file_location(name, sys.argv[1] + "/" + name + ".py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def both(given):
    if isinstance(given, dict):
        return [], given
    pair = len(given) == 2 and isinstance(given[0], (list, tuple)) and isinstance(given[1], dict)
    return (given[0], given[1]) if pair else (given, {})


task, candidate = load("counted_task"), load("candidate")
vars(task).update(getattr(task, "PROFILES", {}).get(sys.argv[2], {}))
with torch.device("cuda"), torch.no_grad():
    args, named = both(task.get_init_inputs())
    model = candidate.ModelNew(*args, **named).cuda()
    args, named = both(task.get_inputs())
    args = [x.cuda() if isinstance(x, torch.Tensor) else x for x in args]
    for number in range(3):
        if number == 2:
            torch.cuda.synchronize()
            torch.cuda.profiler.start()
        model(*args, **named)
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()
"""


def counted(folder: str, command: list[str], task_source: str, profile: str, source: str) -> str:
    """What `command`, with the script behind it, printed; cut off after WALL_S."""
    for name, text in (("counting.py", _SCRIPT), ("counted_task.py", task_source), ("candidate.py", source)):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(text)
    words = [*command, os.path.join(folder, "counting.py"), folder, profile]
    try:
        process = subprocess.Popen(
            words, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace", start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        return f"==ERROR== {error}"
    try:
        output, _ = process.communicate(timeout=WALL_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return f"==ERROR== it did not end within {WALL_S:.0f} s"
    return output[-MOST_CHARS:]
