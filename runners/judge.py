"""`kernelmill judge --task FILE --candidate FILE`: judge one pair on this machine.

Exit code 0 pass, 1 fail, 2 trouble on our side or bad usage, 3 this tier can't tell.
"""

import argparse
import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from core import plain_files
from runners import judge_options
from runners.usage import UsageError

if TYPE_CHECKING:
    from core.evaluation.settings import JudgeSettings
    from core.evaluation.tiers import AnyJudge
    from core.evaluation.verdict import Verdict

EXIT = {"pass": 0, "fail": 1, "infra": 2, "unsupported": 3}
MAX_SOURCE = 1 << 20
"""Bytes of a task or a candidate."""
TOLD_AFTER_S = 5.0
"""What takes longer is named on stderr."""


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add the subcommand; nothing here imports torch."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "judge",
        help="judge one kernel against one task",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--task", required=True, type=Path, help="file with Model, get_inputs and get_init_inputs")
    parser.add_argument("--candidate", required=True, type=Path, help="file with class ModelNew and its Triton kernels")
    parser.add_argument("--profile", default="cpu", choices=("cpu", "small", "full"), help="sizes used for correctness")
    parser.add_argument(
        "--backend", default="triton", choices=("triton", "cuda"), help="what candidates are written in"
    )
    judge_options.add_options(parser)
    parser.add_argument("--json", action="store_true", help="print the verdict as one JSON line")
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    texts = []
    for name, path in (("--task", args.task), ("--candidate", args.candidate)):
        try:
            texts.append(plain_files.text(path, f"{name} {path}", MAX_SOURCE))
        except plain_files.NotPlain as error:
            raise UsageError(str(error)) from None
    from core.identity import candidate_key
    from core.tasks.task import Task

    settings = judge_options.settings(args, args.profile)
    if args.backend == "cuda" and args.target.startswith("hip"):
        raise UsageError(f"--backend cuda is compiled by nvcc, but --target {args.target}: give one like cuda:90")
    task = Task(
        task_id=f"file/{args.task.stem}",
        name=args.task.stem,
        level=1,
        origin="file",
        source=texts[0],
        backend=args.backend,
    )
    key = candidate_key(task.source, texts[1], settings.identity(), settings.device_class)
    from core.evaluation.cuda_source import is_cuda, is_triton
    from core.evaluation.proof import Unproven
    from core.evaluation.tiers import open_judge

    if args.gpu:  # before CUDA numbers the GPUs for this process in an order of its own
        from core.evaluation.walls.gpu import one_gpu

        os.environ.update(one_gpu(0))
    try:
        judge = open_judge(settings)
    except OSError as error:
        raise UsageError(judge_options.in_options(str(error))) from None
    try:
        judge.start()
        with _waits_told(judge, settings), _stays():
            verdict = judge.judge(task, texts[1], key)
        if verdict.kind == "fail":  # it may be the machine that is wrong
            judge.prove()
    except Unproven as error:
        raise UsageError(f"no verdict: {error}") from None
    finally:
        judge.stop()
    if args.backend == "triton" and verdict.kind == "fail" and is_cuda(texts[1]):
        print(f"kernelmill judge: {args.candidate} is CUDA C++: judge it with --backend cuda", file=sys.stderr)
    if args.backend == "cuda" and verdict.kind == "fail" and is_triton(texts[1]):
        print(f"kernelmill judge: {args.candidate} is Triton: judge it with --backend triton", file=sys.stderr)
    if args.json:
        import msgspec

        print(msgspec.json.encode(verdict).decode())
    else:
        _show(verdict, judge.walls.describe())
    return EXIT[verdict.kind]


@contextlib.contextmanager
def _waits_told(judge: "AnyJudge", settings: "JudgeSettings") -> Iterator[None]:
    """Says once what is waited for and how long at most: a task whose code hangs would keep silent for minutes."""
    from core.evaluation import judge as judging
    from core.evaluation.waits import in_words, longest_s

    waits = {
        True: f"the task's own code (its inputs and Model): at most {judging.REFERENCE_S:.0f} s",
        False: f"the candidate: at most {longest_s(settings):.0f} s ({in_words(settings, '--wall')})",
    }
    ended = threading.Event()

    def watch() -> None:
        what, since = judge.preparing, time.monotonic()
        while waits and not ended.wait(TOLD_AFTER_S / 20):
            if judge.preparing != what:
                what, since = judge.preparing, time.monotonic()
            elif time.monotonic() - since > TOLD_AFTER_S and what in waits:
                print(f"kernelmill judge: waiting for {waits.pop(what)}", file=sys.stderr, flush=True)

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield
    finally:
        ended.set()
        watching.join()


@contextlib.contextmanager
def _stays() -> Iterator[None]:
    """A task that ends its process, by `os._exit`, does not run: this process would end with the task's exit code, as
    if that were the verdict's."""

    def ends(code: int) -> NoReturn:
        raise SystemExit(code)

    before = os._exit
    os._exit = ends  # type: ignore[assignment]
    try:
        yield
    finally:
        os._exit = before


def _show(verdict: "Verdict", walls: str) -> None:
    from core.evaluation.findings import joined

    words = {"pass": "PASS", "fail": "FAIL", "unsupported": "CAN'T TELL", "infra": "NO VERDICT"}
    stage = f" at {verdict.stage}" if verdict.stage else ""
    print(f"{words[verdict.kind]}{stage}  ({verdict.wall_s:.2f} s, sandbox: {walls})")
    print(joined(verdict.feedback))
    if verdict.speedup is not None:
        times = f"{verdict.runtime_ms:.4g} ms against {verdict.baseline_ms:.4g} ms"
        print(f"speedup {verdict.speedup:.3f} ({verdict.speed_kind}), {times}")
    if verdict.screens:
        print(f"noted in the source: {', '.join(verdict.screens)}")
