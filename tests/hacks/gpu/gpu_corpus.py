"""The device part of the corpus, judged by several workers: `python -m tests.hacks.gpu.gpu_corpus`.

    --workers 8     processes, each with a stage of its own; visible GPUs go round
    --only WORD     files whose name holds the word
    --timed no      correctness alone

Prints one JSON line; `not_as_wanted` has each verdict that the file's docstring does not want, with its feedback. A
file's `expect` is `pass` or the categories that may refuse it; `unpaid` there means that it may pass as long as its
speedup stays below the line `most`: the hack brought nothing.
"""

import argparse
import contextlib
import json
import os
import re
import tempfile
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from core.evaluation.walls import gpu as gpu_walls
from core.evaluation.walls import sandbox
from core.tasks.task import Task
from tests.benchmarks.gpu_chaos import Workers

HERE = Path(__file__).parent
WALL_S = 150.0
TOLD = ("kind", "category", "speedup", "feedback", "wall_s")


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


def judge(paths: list[Path], workers: int, timed: bool = True, device: str = "cuda:0") -> list[dict[str, Any]]:
    """A dict per file: file, kind, category, speedup, feedback, wall_s. Raises TimeoutError when nobody answers."""
    sources = {path: path.read_text() for path in paths}
    # Those that compile longest first, then files of one task side by side.
    ranked = sorted(paths, key=lambda path: ("backend: cuda" not in sources[path], fields(sources[path])["task"]))
    with tempfile.TemporaryDirectory(prefix="corpus-") as folder:
        judges = Workers(workers, SimpleNamespace(device=device, timed=timed), folder, _work)
        try:
            for number, path in enumerate(ranked):
                judges.queues[number % workers].put(str(path).encode())
            found = judges.collect(len(paths))
            for queue in judges.queues:
                queue.put(None)
        finally:
            judges.stop(10.0)
    return sorted(found, key=lambda answer: answer["file"])


def _work(number: int, args: Any, folder: str, work: Any, results: Any, _: Any) -> None:
    """One worker: a stage of its own on a sound and quiet GPU, as an evaluator's worker has; files until there is
    none. The GPUs that are visible go round."""
    if args.device != "cpu":
        os.environ.update(gpu_walls.one_gpu(number))  # before torch looks
    from core.evaluation.gpu import probe as gpu_probe
    from core.evaluation.gpu.health import ContextLost, GpuHealth, GpuUnfit
    from core.evaluation.gpu.lease import lease
    from core.evaluation.gpu.stage import GpuSettings, GpuStage

    settings = GpuSettings(wall_s=WALL_S, device=args.device, own_work=args.device != "cpu")
    stage = GpuStage(settings, sandbox.probe(), slot=300 + 4 * number)
    health = GpuHealth(
        args.device, probe=lambda: gpu_probe.warm(stage.candidates, args.device), prober=stage.candidates,
        keep=[stage.baselines, stage.candidates], guard=lambda: lease(args.device), folder=Path(folder),
    )  # fmt: skip
    try:
        stage.start()
        stage.wait_ready()
        health.quiet.calibrate()
        stage.watch_quiet(health.quiet)
        while (order := work.get()) is not None:
            results.put({"took": number, "message": order})
            path = Path(order.decode())
            answer: dict[str, Any] = {"worker": number, "file": f"{path.parent.name}/{path.stem}"}
            try:
                verdict = health.run(
                    partial(stage.judge, task_of(path.read_text()), path.read_text(), path.stem, args.timed)
                )
                told = {name: getattr(verdict, name) for name in TOLD}
            except ContextLost as error:  # another worker judges it
                results.put({"lost": number, "why": f"{path.stem}: {error}"[:300]})
                break
            except Exception as error:  # the rest of the corpus is judged all the same
                told = dict(zip(TOLD, ("error", "", None, f"{error!r}"[:400], 0.0), strict=True))
            results.put(answer | told)
            with contextlib.suppress(GpuUnfit):
                health.recover()
    finally:
        stage.stop()


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
