"""Jobs of `tests.gpu.everything`: a process each on cards of its own, asked to end before it is ended, and two files
that hold what all of them said.

    results.json    each job's state, code, cards, seconds and the lines of its stdout, as JSON where they are
    err.txt         the end of what each said otherwise

Both are written anew while jobs run, whole under another name and then moved: who is cut off at any moment has what was
said until then. Where files are few that come back, two of them hold any number of jobs.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any, NamedTuple

import psutil

ROOT = Path(__file__).parents[2]
OUT_BYTES, ERR_BYTES = 1_000_000, 400_000
"""Of each job's two streams, their ends."""
GRACE_S = 12.0
"""From being asked to end until being ended: who is asked tells what it has."""
LOOK_S = 2.0
"""Between looks at what a job has started: they cost what is measured beside them."""


class Job(NamedTuple):
    cards: int
    seconds: int
    """What it took on H200s, about; it is not begun with less time than that."""
    words: tuple[str, ...]
    vllm: bool = False
    judges: bool = False
    """It needs a judge that works."""

    @property
    def most_s(self) -> float:
        """It hangs where it takes longer."""
        return 2.0 * self.seconds + 30.0


def visible(cards: tuple[int, ...], shown: str) -> str:
    """CUDA_VISIBLE_DEVICES of a job on these of the cards that this process, with `shown` for its own, sees."""
    names = [word.strip() for word in shown.split(",") if word.strip()]
    return ",".join(names[card] if card < len(names) else str(card) for card in cards)


def within(words: tuple[str, ...], left_s: float) -> tuple[str, ...]:
    """The words of a job that ends by itself before it is asked to, where it can."""
    if "--limit-s" not in words:
        return words
    at = words.index("--limit-s") + 1
    return (*words[:at], f"{min(float(words[at]), left_s - 2 * GRACE_S):.0f}", *words[at + 1 :])


class Running:
    """One job's process."""

    def __init__(
        self, name: str, job: Job, cards: tuple[int, ...], folder: Path, left_s: float, vllm_path: str = ""
    ) -> None:  # fmt: skip
        """What it says goes to files in `folder`."""
        self.name, self.job, self.cards = name, job, cards
        self.out, self.err = folder / f"{name}.out", folder / f"{name}.err"
        self.began = time.monotonic()
        self.until = self.began + min(left_s - GRACE_S, job.most_s)
        self._asked = self._looked = 0.0
        self._below: dict[int, psutil.Process] = {}
        paths = [vllm_path] if job.vllm and vllm_path else []
        paths += [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH", "")])]
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *within(job.words, left_s)], cwd=ROOT, stdout=out, stderr=err,
                stdin=subprocess.DEVNULL, start_new_session=True,
                env={
                    **os.environ, "PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1",
                    "CUDA_VISIBLE_DEVICES": visible(cards, os.environ.get("CUDA_VISIBLE_DEVICES", "")),
                },
            )  # fmt: skip

    @property
    def left_s(self) -> float:
        """Until it is over, about."""
        return max(0.0, self.began + self.job.seconds - time.monotonic())

    def over(self) -> bool:
        """Whether it has ended; one whose time is up is asked to, and ended when it does not."""
        if self.process.poll() is not None:
            return True
        now = time.monotonic()
        if now > self._looked + LOOK_S:
            self._looked = now
            with contextlib.suppress(psutil.Error):  # some of them begin sessions of their own
                self._below |= {child.pid: child for child in psutil.Process(self.process.pid).children(recursive=True)}
        if not self._asked and now > self.until:
            self._asked = now
            self.process.terminate()
        return bool(self._asked) and now > self._asked + GRACE_S - 2.0

    def end(self) -> dict[str, Any]:
        """End what is left of it, below it too; what became of it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for child in self._below.values():
            with contextlib.suppress(psutil.Error):
                child.kill()
        code = self.process.wait()
        return {"state": "cut off" if self._asked else "over", "code": code, **self.told()}

    def told(self) -> dict[str, Any]:
        """So far."""
        seconds = round(time.monotonic() - self.began, 1)
        return {"cards": list(self.cards), "seconds": seconds, "said": said(tail(self.out, OUT_BYTES))}


def tail(path: Path, most: int) -> str:
    with path.open("rb") as file:
        _from_end(file, most)
        return file.read().decode(errors="replace")


def _from_end(file: IO[bytes], most: int) -> None:
    file.seek(max(0, file.seek(0, os.SEEK_END) - most))


def said(text: str) -> list[Any]:
    """Lines, as JSON where they are."""
    found: list[Any] = []
    for line in filter(None, map(str.rstrip, text.splitlines())):
        try:
            found.append(json.loads(line))
        except ValueError:
            found.append(line)
    return found


class Results:
    """The two files in `folder`."""

    def __init__(self, folder: Path, head: dict[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._head = folder, head
        self._jobs: dict[str, dict[str, Any]] = {}
        self._errs: dict[str, str] = {}

    def tell(self, name: str, found: dict[str, Any]) -> None:
        """What became of a job, in the files and, without its lines, on stdout."""
        self._jobs[name] = found
        print(json.dumps({"job": name, **{key: value for key, value in found.items() if key != "said"}}), flush=True)

    def write(self, running: list[Running] | tuple[Running, ...] = ()) -> None:
        """As it stands, those that run included."""
        for one in running:
            self.note_err(one)
        now = {one.name: {"state": "runs", **one.told()} for one in running}
        body = {**self._head, "jobs": {**self._jobs, **now}}
        self._put("results.json", json.dumps(body, indent=1))
        self._put("err.txt", "".join(f"===== {name}\n{text}\n" for name, text in self._errs.items()))

    def note_err(self, one: Running) -> None:
        self._errs[one.name] = tail(one.err, ERR_BYTES)

    def _put(self, name: str, text: str) -> None:
        new = self._folder / f"{name}.new"
        new.write_text(text)
        os.replace(new, self._folder / name)
