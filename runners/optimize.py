"""`kernelmill optimize MODULE.py --model PATH`: a trained policy writes a kernel for a PyTorch module of one's own.

MODULE.py holds Model, get_inputs and get_init_inputs (KernelBench's format). The policy plays it --samples times, each
attempt over several turns with the judge's feedback; the fastest right kernels are judged again, and the best one is
written to --out. Prompt, sampling and judge are those of the run whose policy it is (runs/NAME/policy), or --config's:

    kernelmill export runs/mine
    kernelmill optimize norm.py --model runs/mine/policy --samples 64
    kernelmill optimize norm.py --model /models/Qwen3-8B --config configs/qwen3-8b.toml judge.device_class=h100

Exit code 0 when a kernel is written, 1 when none passed, 2 for bad usage and for a module that can't be judged.
"""

import argparse
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runners.pulse import Pulse, lasting

if TYPE_CHECKING:
    from configs.schema import RunConfig
    from core.episodes.episode import Episode
    from core.evaluation.pool import JudgePool
    from core.evaluation.verdict import Verdict
    from core.record.best import Kernel
    from core.tasks.task import Task

SAMPLES = 16
WAITS_S = 5.0
"""Until it is told that the module's own code takes long."""
MAX_SOURCE = 1 << 20
"""Bytes of a module."""
SEEDS = 1_000_003
"""Rounds of one --seed that another one can't share."""
NEVER = "never"
"""As `episodes.success_score`: a kernel that is good enough to learn from may still be made faster."""


def add_parser(subparsers: Any) -> None:
    """Add the subcommand; nothing here imports torch."""
    parser = subparsers.add_parser(
        "optimize",
        help="a trained policy writes a kernel for your own module",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("module", type=Path, help="file with Model, get_inputs and get_init_inputs")
    parser.add_argument("--model", required=True, metavar="PATH", help="the policy: a Hugging Face folder")
    parser.add_argument("--config", type=Path, help="recipe for prompt, sampling and judge (default: the policy's run)")
    parser.add_argument(
        "--samples", type=int, default=SAMPLES, metavar="N", help=f"attempts of the policy (default {SAMPLES})"
    )
    parser.add_argument(
        "--again", type=int, default=3, metavar="N", help="kernels that are judged again, the fastest (default 3)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the sampling (default 0)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where to (default: MODULE_kernel.py, here)")
    parser.add_argument("--json", action="store_true", help="print what was found as one JSON line")
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="KEY=VALUE", help="overrides, e.g. episodes.max_turns=5"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0, or 1 when no kernel passed; raises UsageError, ConfigError, TaskError or JudgeError with what to do."""
    from core.record import best
    from runners import interrupts
    from runners.playing import check_cards, check_judge_here
    from runners.preflight import check_engine, check_model, check_output
    from runners.usage import UsageError

    for option, count in (("--samples", args.samples), ("--again", args.again)):
        if count < 1:
            raise UsageError(f"{option} {count}: wanted at least 1")
    out = args.out or Path(f"{args.module.stem}_kernel.py")
    if out.exists() or out.is_symlink():
        raise UsageError(f"--out {out} is there already: move it away, or choose another file")
    check_output(str(out), "--out")
    config_path, config = _config(args)
    check_model(config, str(config_path))
    check_engine(config)
    check_cards(config)
    check_judge_here(config)
    found = Found(_task(args.module, config), config, args.samples, out)
    with Pulse(found.line):
        verdict = interrupts.run("optimize", _optimize(found, args), "the engine and the judge's workers")
    if verdict is None:
        print(f"kernelmill optimize: no kernel passed: {found.failures()}", file=sys.stderr)
        if args.json:
            _tell(args, found, None, 0)
        return 1
    kernels = best.ranked(found.kernels)[found.task.task_id]
    _tell(args, found, verdict, len(kernels))
    return 0 if verdict.kind == "pass" else 1


def _config(args: argparse.Namespace) -> "tuple[Path, RunConfig]":
    from configs.load import load
    from runners.usage import UsageError

    path = args.config
    if path is None:
        if not Path(args.model).is_dir():
            raise UsageError(f"--model {args.model}: there is no such folder (looked in {Path.cwd()})")
        if (Path(args.model) / "record").is_dir():
            raise UsageError(
                f"--model {args.model} is a run: `kernelmill export {args.model}` makes its policy, {args.model}/policy"
            )
        run = Path(args.model).resolve().parent
        if not (run / "record").is_dir() or not (run / "config.json").is_file():
            raise UsageError(
                f"--model {args.model} lies in no run's folder: give --config, a recipe with prompt, sampling and judge"
            )
        path = run / "config.json"
    goes_on = [] if any(text.startswith("episodes.success_score=") for text in args.overrides) else [
        f"episodes.success_score={NEVER}"
    ]  # fmt: skip
    return path, load(path, [*goes_on, *args.overrides, f"model.path={args.model!r}"])


def _task(path: Path, config: "RunConfig") -> "Task":
    from core import plain_files
    from core.tasks import format
    from core.tasks.task import Task
    from runners.usage import UsageError

    try:
        source = plain_files.text(path, str(path), MAX_SOURCE)
    except plain_files.NotPlain as error:
        raise UsageError(str(error)) from None
    format.profiles_of(format.parse(source, str(path)), str(path))
    return Task(
        task_id=f"file/{path.stem}", name=path.stem, level=1, origin="file", source=source, backend=config.tasks.backend
    )


class Found:
    """What the policy wrote so far."""

    def __init__(self, task: "Task", config: "RunConfig", samples: int, out: Path) -> None:
        self.task, self.config, self.out = task, config, out
        self.kernels: list[Kernel] = []
        self.ended = self.right = 0
        self._samples = samples
        self._kinds: Counter[str] = Counter()
        self._said: dict[str, str] = {}
        self._started = time.monotonic()
        self._state = "starting the engine and the judge"

    def begin(self) -> None:
        self._state = ""

    def judging(self, count: int) -> None:
        self._state = f"judging {count} again"

    def take(self, episode: "Episode") -> None:
        from core.episodes.heldout_figures import HeldOut
        from core.record import best

        evaluation = HeldOut.of([episode], version=0, step=0, sources={})
        new = list(best.of_evaluation(evaluation, str(episode.index)))
        self.ended += 1
        self.right += bool(new)
        for kernel in new:
            if not self.kernels or best.speed_of(kernel.verdict) > self.fastest:
                self._told(kernel)
            self.kernels.append(kernel)
        for turn in episode.turns:
            if turn.verdict is not None and turn.verdict.kind != "pass":
                kind = turn.verdict.category or turn.verdict.kind
                self._kinds[kind] += 1
                self._said.setdefault(kind, turn.verdict.feedback.strip().partition("\n")[0][:160])

    def failures(self) -> str:
        """Why nothing passed, the most frequent first, which has an example."""
        most = self._kinds.most_common(4)
        if not most:
            return f"{self.ended} attempts, no kernel in any"
        kinds = ", ".join(f"{'once' if count == 1 else f'{count} times'} {kind}" for kind, count in most)
        return f"{kinds}; for example {self._said[most[0][0]]}"

    @property
    def fastest(self) -> float:
        """Speedup, 0.0 where there is none."""
        from core.record.best import speed_of

        return max((speed_of(kernel.verdict) for kernel in self.kernels), default=0.0)

    def _told(self, kernel: "Kernel") -> None:
        from runners.interrupts import say
        from runners.judging_again import speed_in_words

        say(f"kernelmill optimize: attempt {self.ended}, turn {kernel.turn + 1}: {speed_in_words(kernel.verdict)}")

    def line(self) -> str:
        state = self._state
        if not state:
            fastest = f", the fastest {self.fastest:.2f}x" if self.fastest else ""
            state = f"{self.ended} of {self._samples} attempts, {self.right} right{fastest}"
        return f"kernelmill optimize: {state}, {lasting(time.monotonic() - self._started)}"

    def write(self, kernel: "Kernel") -> None:
        """Into a file of its own: another call may have written to the one that was asked for since."""
        asked, number = self.out, 1
        while True:
            try:
                with self.out.open("xb") as file:
                    file.write(kernel.source.encode("utf-8", "replace"))
                return
            except FileExistsError:
                number += 1
                self.out = asked.with_stem(f"{asked.stem}-{number}")


async def _optimize(found: Found, args: argparse.Namespace) -> "Verdict | None":
    """The verdict of the kernel that was written; None where none passed. What was found stands when it is ended."""
    import asyncio

    from core.record import best
    from runners.interrupts import say
    from runners.judging_again import judged_again
    from runners.playing import at_hand, key_of

    async def first(pool: "JudgePool") -> None:
        await _runs(pool, found)

    try:
        async with at_hand(found.config, first) as playing:
            found.begin()
            for number, count in enumerate(_rounds(args.samples, found.config)):
                await playing.evaluate(
                    [found.task],
                    samples_per_task=count,
                    seed=args.seed * SEEDS + number,
                    ended=found.take,
                )
            if not found.kernels:
                return None
            kernels = best.ranked(found.kernels)[found.task.task_id][: args.again]
            found.judging(len(kernels))
            keys = [key_of(found.config, found.task, kernel.source) for kernel in kernels]
            kernel, verdict = await judged_again(playing.pool, found.task, kernels, keys)
            if verdict.kind == "pass":
                found.write(kernel)
            return verdict
    except asyncio.CancelledError:
        if found.kernels:
            found.write(best.ranked(found.kernels)[found.task.task_id][0])
            say(f"kernelmill optimize: the fastest kernel so far is in {found.out}; it was not judged again")
        raise


async def _runs(pool: "JudgePool", found: Found) -> None:
    """Raises UsageError where the module itself can't be judged, whatever is written for it: told by the judge of any
    kernel."""
    import asyncio

    from core.evaluation.judge import REFERENCE_S
    from core.evaluation.proof import RIGHT
    from runners.interrupts import say
    from runners.playing import key_of
    from runners.usage import UsageError

    waits = asyncio.get_running_loop().call_later(
        WAITS_S, say, f"kernelmill optimize: waiting for {found.task.name}'s own code: at most {REFERENCE_S:.0f} s"
    )
    try:
        verdict = await pool.judge(found.task, RIGHT, key_of(found.config, found.task, RIGHT))
    finally:
        waits.cancel()
    if verdict.kind in ("infra", "unsupported"):
        said = verdict.feedback.strip().partition("\n")[0]
        raise UsageError(f"{found.task.name} can't be judged here: {said}")


def _rounds(samples: int, config: "RunConfig") -> list[int]:
    """How many attempts are made at once: not so many that waiting for a judge would end them, by deadlines that are
    meant for a group of a run."""
    at_once = config.sampler.group_size * config.judge.workers
    return [min(at_once, samples - begun) for begun in range(0, samples, at_once)]


def _tell(args: argparse.Namespace, found: Found, verdict: "Verdict | None", kernels: int) -> None:
    from runners.judging_again import speed_in_words
    from runners.live import clean

    if args.json:
        import msgspec

        told = {"module": str(args.module), "kernel": str(found.out), "verdict": verdict, "attempts": found.ended,
                "right": found.right, "kernels": kernels}  # fmt: skip
        passed = verdict is not None and verdict.kind == "pass"
        print(msgspec.json.encode(told | ({} if passed else {"kernel": None})).decode())
        return
    assert verdict is not None
    words = f"{found.right} of {found.ended} attempts right, {kernels} different kernels"
    if verdict.kind == "pass":
        print(clean(f"{args.module}: {speed_in_words(verdict)}; {words}; written to {found.out}"))
    else:
        print(clean(f"{args.module}: {words}; judged again: {verdict.kind} {verdict.category}; nothing written"))
