"""The device part of the corpus, judged by several workers on one GPU: `python -m tests.hacks.gpu.gpu_corpus`.

    --workers 8     processes, each with a stage of its own
    --only WORD     files whose name holds the word
    --timed no      correctness alone

Prints one JSON line; `not_as_wanted` has each verdict that the file's docstring does not want, with its feedback. A
file's `expect` is `pass` or the categories that may refuse it; `unpaid` there means that it may pass as long as its
speedup stays below the line `most`: the hack brought nothing.
"""

import argparse
import json
import multiprocessing
import re
import sys
import time
from pathlib import Path
from typing import Any

from core.evaluation.walls import sandbox
from core.tasks.task import Task

HERE = Path(__file__).parent
WALL_S = 150.0


def fields(source: str) -> dict[str, str]:
    """The lines `name: value` of a file's docstring."""
    docstring = source.split('"""')[1]
    return dict(re.findall(r"^(id|tier|task|expect|backend|most): (.+)$", docstring, re.MULTILINE))


def files() -> list[Path]:
    return sorted((*HERE.glob("refused/*.py"), *HERE.glob("honest/*.py")))


def task_of(source: str) -> Task:
    """The task that a file names: one of this folder, else of the corpus above."""
    told = fields(source)
    name = told["task"]
    path = next(path for path in (HERE / "tasks" / f"{name}.py", HERE.parent / "tasks" / f"{name}.py") if path.exists())
    return Task(
        task_id=f"hacks/{name}", name=name, level=1, origin="hacks", source=path.read_text(),
        backend=told.get("backend", "triton"),
    )  # fmt: skip


def as_wanted(source: str, verdict: dict[str, Any]) -> bool:
    """Whether a verdict (kind, category, speedup) is what the file's docstring asks for."""
    told = fields(source)
    wanted = told["expect"].split(", ")
    if verdict["kind"] == "pass":
        slow = "unpaid" in wanted and (verdict["speedup"] or 0.0) <= float(told.get("most", "1.2"))
        return slow or wanted == ["pass"]
    return verdict["kind"] == "fail" and verdict["category"] in wanted


def judge(paths: list[Path], workers: int, timed: bool = True) -> list[dict[str, Any]]:
    """A dict per file: file, kind, category, speedup, feedback, wall_s."""
    context = multiprocessing.get_context("spawn")
    orders, answers = context.SimpleQueue(), context.SimpleQueue()
    # Those that compile longest first, then files of one task side by side.
    sources = {path: path.read_text() for path in paths}
    ranked = sorted(paths, key=lambda path: ("backend: cuda" not in sources[path], fields(sources[path])["task"]))
    for path in [*ranked, *[None] * workers]:
        orders.put(path)
    processes = [context.Process(target=_work, args=(number, orders, answers, timed)) for number in range(workers)]
    for process in processes:
        process.start()
    found, ended = [], 0
    while ended < workers:
        answer = answers.get()
        if answer is None:
            ended += 1
        else:
            found.append(answer)
            print(json.dumps(answer), file=sys.stderr, flush=True)
    for process in processes:
        process.join()
    return sorted(found, key=lambda answer: answer["file"])


def _work(number: int, orders: Any, answers: Any, timed: bool) -> None:
    """One worker: a stage of its own, files until there is none."""
    from core.evaluation.gpu.stage import GpuSettings, GpuStage

    stage = None
    try:
        stage = GpuStage(GpuSettings(wall_s=WALL_S), sandbox.probe(), slot=300 + 4 * number)
        stage.start()
        stage.wait_ready()
        while (path := orders.get()) is not None:
            answer: dict[str, Any] = {"file": f"{path.parent.name}/{path.stem}"}
            try:
                source = path.read_text()
                verdict = stage.judge(task_of(source), source, path.stem, timed)
                answer |= {
                    name: getattr(verdict, name) for name in ("kind", "category", "speedup", "feedback", "wall_s")
                }
            except Exception as error:  # the rest of the corpus is judged all the same
                answer |= {
                    "kind": "error",
                    "category": "",
                    "speedup": None,
                    "feedback": f"{error!r}"[:400],
                    "wall_s": 0.0,
                }
            answers.put(answer)
    finally:
        if stage is not None:
            stage.stop()
        answers.put(None)


def main() -> None:
    parser = argparse.ArgumentParser(description="Judge the device part of the corpus")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--only", default="")
    parser.add_argument("--backend", choices=["all", "triton", "cuda"], default="all")
    parser.add_argument("--timed", choices=["yes", "no"], default="yes")
    options = parser.parse_args()
    paths = [path for path in files() if options.only in f"{path.parent.name}/{path.stem}"]
    if options.backend != "all":
        cuda = options.backend == "cuda"
        paths = [path for path in paths if (fields(path.read_text()).get("backend", "triton") == "cuda") == cuda]
    started = time.monotonic()
    found = judge(paths, options.workers, options.timed == "yes")
    wrong = [a | {"expect": fields((HERE / f"{a['file']}.py").read_text())["expect"]} for a in found
             if not as_wanted((HERE / f"{a['file']}.py").read_text(), a)]  # fmt: skip
    counts = {kind: sum(a["file"].startswith(kind) for a in found) for kind in ("refused", "honest")}
    slowest = sorted(found, key=lambda a: -a["wall_s"])[:5]
    print(json.dumps({
        "judged": counts, "missing": len(paths) - len(found), "wall_s": round(time.monotonic() - started, 1),
        "slowest": {a["file"]: round(a["wall_s"], 1) for a in slowest}, "not_as_wanted": wrong,
    }))  # fmt: skip


if __name__ == "__main__":
    main()
