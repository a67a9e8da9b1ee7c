"""Results of a run that has little time: each part is told as it stands, the whole within a limit, whatever happens."""

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import psutil


class Told:
    """Parts go to stderr at once; the line on stdout is all of them.

    Where the limit or a SIGTERM cuts it short, the line is printed and this process ends at once with its children: a
    start under way in a thread can't be cancelled."""

    def __init__(
        self, limit_s: float, *, line: Callable[[dict[str, Any]], dict[str, Any]] = lambda found: found
    ) -> None:
        self.found: dict[str, Any] = {}
        self._began, self._limit_s, self._line = time.monotonic(), limit_s, line
        self._at_end: list[Callable[[], None]] = []
        signal.signal(signal.SIGTERM, lambda *_: self._cut("ended from outside"))
        self._clock = threading.Timer(limit_s, self._cut, (f"limit of {limit_s:g} s",))
        self._clock.daemon = True
        self._clock.start()

    @property
    def left_s(self) -> float:
        return self._limit_s - (time.monotonic() - self._began)

    def add(self, **parts: Any) -> None:
        """Mappings are added to what stands under their name."""
        for name, value in parts.items():
            if isinstance(value, dict) and isinstance(self.found.get(name), dict):
                self.found[name] = {**self.found[name], **value}
            else:
                self.found[name] = value
        print(json.dumps({"at_s": round(self._limit_s - self.left_s, 1), **parts}), file=sys.stderr, flush=True)

    def at_end(self, call: Callable[[], None]) -> None:
        self._at_end.append(call)

    def finish(self) -> None:
        self._clock.cancel()
        whole = {**self.found, "wall_s": round(self._limit_s - self.left_s, 1)}
        print(json.dumps(self._line(whole)), flush=True)
        for call in self._at_end:
            call()

    def _cut(self, why: str) -> None:
        self.add(cut=why)
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                child.kill()
        self.finish()
        os._exit(1)
