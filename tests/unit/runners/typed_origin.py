"""The process that the calls of `typed.py` are forked from: an order per line on stdin, an answer per line on stdout.

It has imported and done nothing else: no thread, no loop and no operation of torch that a fork would miss.
"""

import atexit
import importlib
import json
import os
import pkgutil
import select
import signal
import sys
import threading
import time
import traceback

import runners
from runners import cli

LONGEST_S = 120.0
IMPORTED = (
    "torch",
    "safetensors",
    "tokenizers",
    "transformers.models.auto.modeling_auto",
    "packaging.requirements",
    "actors.eval_http",
    "core.evaluation.tiers",
)


def main():
    for name in (*IMPORTED, *(f"runners.{module.name}" for module in pkgutil.iter_modules(runners.__path__))):
        importlib.import_module(name)
    assert threading.active_count() == 1
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if not pid:
            call(order)
        print(json.dumps(awaited(pid)), flush=True)


def call(order):
    os.setpgid(0, 0)
    os.chdir(order["cwd"])
    sys.modules.update(dict.fromkeys(order["absent"]))
    os.environ.clear()
    os.environ.update(order["environment"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, path in enumerate(order["streams"], start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    sys.argv = ["kernelmill", *order["words"]]
    code = 1
    try:
        code = exit_code(cli.main())
    except SystemExit as left:
        code = exit_code(left.code)
    except BaseException:
        traceback.print_exc()
    finally:  # As Python ends, but for taking torch apart: that is most of a second.
        threading._shutdown()  # waits for threads
        atexit._run_exitfuncs()
        sys.stdout.flush()
        if not sys.stderr.closed:
            sys.stderr.flush()
        os._exit(code)


def exit_code(answer):
    if answer is None or isinstance(answer, int):
        return answer or 0
    print(answer, file=sys.stderr)
    return 1


def awaited(pid):
    """How the call ended, and what is wrong with its end."""
    ends = time.monotonic() + LONGEST_S
    handle = os.pidfd_open(pid)
    left = "" if select.select([handle], [], [], LONGEST_S)[0] else f"not done in {LONGEST_S:g} s"
    os.close(handle)
    if left:
        os.killpg(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    while not left and in_group(pid):
        time.sleep(0.02)
        if time.monotonic() > ends:
            left = "ended, and processes of its group did not"
            os.killpg(pid, signal.SIGKILL)
    return {"code": code, "left": left}


def in_group(pid):
    try:
        os.killpg(pid, 0)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    main()
