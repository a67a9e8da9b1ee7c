"""Child processes of a benchmark: their JSON lines as they come, a time limit each, no failure that ends the rest."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

TAIL_LINES = 60
"""Last lines of a child's stderr that are shown when it fails."""


def json_lines(command: list[str], limit_s: float, env: dict[str, str] | None = None) -> Iterator[dict]:
    """Runs `command`, yields the JSON objects that it prints on lines of their own as they come.

    A child that fails or outlives `limit_s` seconds ends with an object that has "error"; it and its own children are
    killed then, and the end of its stderr is shown.
    """
    began = time.monotonic()
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **(env or {})},
        start_new_session=True,
    )  # fmt: skip
    said: queue.Queue[str | None] = queue.Queue()
    tail: list[str] = []
    threads = [
        threading.Thread(target=_pump, args=(child.stdout, said.put), daemon=True),
        threading.Thread(target=_pump, args=(child.stderr, lambda line: _keep(tail, line)), daemon=True),
    ]
    for thread in threads:
        thread.start()
    why = None
    while True:
        left = limit_s - (time.monotonic() - began)
        try:
            line = said.get(timeout=max(left, 0.001))
        except queue.Empty:
            why = f"took more than {limit_s:.0f} s"
            break
        if line is None:
            break
        if line.startswith("{"):
            with contextlib.suppress(json.JSONDecodeError):  # a library's own line
                yield json.loads(line)
    if why is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(max(limit_s - (time.monotonic() - began), 5.0))
    if child.poll() is None:
        why = why or f"took more than {limit_s:.0f} s"
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)  # what it started as well
    code = child.wait()
    for thread in threads:
        thread.join(5.0)
    if why is None and code:
        last = next((line.strip() for line in reversed(tail) if line.strip()), "no word")
        why = f"ended with code {code}: {last[:300]}"
    if why is not None:
        print("".join(tail), end="", file=sys.stderr, flush=True)
        yield {"error": why}


def _pump(stream, put) -> None:
    for line in stream:
        put(line)
    put(None)


def _keep(tail: list[str], line: str | None) -> None:
    if line is not None:
        tail.append(line)
        del tail[:-TAIL_LINES]
