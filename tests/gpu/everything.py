"""All that only cards can show, in one go on one or two of them: `python -m tests.gpu.everything --out FOLDER`.

    --jobs chaos learner     these alone, in this order (default: all, as far as time goes)
    --limit-s 560            all of it: nothing is begun that would not be over by then, what runs is asked to end
    --vllm-path FOLDER       where vLLM is when it is not installed: for the jobs that need it

Each job is a command of its own. One that needs a card gets one to itself, one that needs two waits for both; what is
over before that may begin meanwhile. What they say is in FOLDER/results.json and FOLDER/err.txt, while they run too
(`tests.gpu.jobs`); a line tells when each is over. First a judge proves itself, and where it can't, the jobs that judge
are left out: its children may see other packages than it does.
"""

import argparse
import asyncio
import signal
import tempfile
import time
from pathlib import Path

from core.evaluation.pool import JudgeError, JudgePool
from core.evaluation.settings import JudgeSettings
from tests.gpu.jobs import GRACE_S, Job, Results, Running

WRITE_S = 3.0
TESTS = ("training/test_fresh_memory.py", "training/test_flash.py", "training/test_snapshot_gpu.py")
CLOCK_TESTS = ("clock_beside", "clock_device", "other_baselines", "honesty", "health", "counters", "processes")
STAGE_TESTS = ("stage", "faults", "precisions")


def tests(*files: str) -> tuple[str, ...]:
    plugins = ("-p", "no:cacheprovider", "-p", "tests.gpu.instant")
    return ("pytest", "-m", "gpu", "-q", *plugins, *(f"tests/unit/{name}" for name in files))


def judge_tests(*names: str) -> tuple[str, ...]:
    return tests(*(f"evaluation/test_gpu_{name}.py" for name in names))


JOBS: dict[str, Job] = {
    "chaos": Job(1, 245, ("tests.benchmarks.gpu_chaos", "--workers", "8", "--endless-wall", "2.5"), judges=True),
    "learner": Job(1, 120, ("tests.benchmarks.learner",)),
    "memory": Job(1, 55, ("tests.benchmarks.gpu_memory",), judges=True),
    "learner-4b": Job(2, 150, (
        "tests.benchmarks.learner", "--model", "4b", "--ranks", "2", "--shapes", "2x16384,16x2048", "--no-trl",
        "--configurations", "default,attention-kept", "--first", "--limit", "170",
    )),
    "context": Job(2, 80, (
        "tests.benchmarks.learner", "--ranks", "2", "--shapes", "1x16384", "--no-trl", "--configurations",
        "default,context", "--limit", "75",
    )),
    "rollout": Job(2, 230, ("tests.benchmarks.rollout", "--limit-s", "280"), vllm=True),
    "rollout-one": Job(1, 200, ("tests.benchmarks.rollout", "--limit-s", "240"), vllm=True),
    "whole": Job(1, 235, ("tests.gpu.whole_system", "--limit-s", "235"), vllm=True, judges=True),
    "whole-apart": Job(2, 200, ("tests.gpu.whole_system", "--apart", "--limit-s", "260"), vllm=True, judges=True),
    "random-apart": Job(2, 150, (
        "tests.gpu.whole_system", "--apart", "--cases", "random-nccl", "--limit-s", "210",
    ), vllm=True, judges=True),
    "cards": Job(2, 60, ("tests.gpu.cards_in_the_walls",), judges=True),
    "corpus": Job(1, 240, ("tests.hacks.gpu.gpu_corpus", "--workers", "8"), judges=True),
    "judge": Job(1, 345, ("tests.benchmarks.judge_gpu",), judges=True),
    "tests": Job(1, 200, tests(*TESTS)),
    "clock-tests": Job(1, 240, judge_tests(*CLOCK_TESTS), judges=True),
    "stage-tests": Job(1, 200, judge_tests(*STAGE_TESTS), judges=True),
    "kind-tests": Job(1, 200, judge_tests("kinds"), judges=True),
    "starters": Job(1, 60, ("tests.gpu.judge_starters",), judges=True),
    "memory-beside": Job(1, 40, ("tests.gpu.memory_beside",)),
}  # fmt: skip


async def fit(cards: int) -> str:
    """Why a judge can't work here, or fails right kernels (core.evaluation.proof), its GPU tier on every card
    included; empty where it does neither."""
    pool = JudgePool(JudgeSettings(speed="none", device_class="gpu" if cards else "cpu"), workers=max(1, cards))
    try:
        await pool.start()
    except JudgeError as error:
        return str(error)
    finally:
        await pool.stop()
    return ""


def next_job(waiting: list[str], free: int, frees_s: float) -> str | None:
    """The first that may begin on `free` cards. Who waits for more cards is not kept waiting by those behind it: they
    begin only where they are over before all cards are free, in `frees_s`."""
    held = False
    for name in waiting:
        job = JOBS[name]
        if job.cards <= free and (not held or job.seconds <= frees_s):
            return name
        held = held or job.cards > free
    return None


def left_out(job: Job, cards: int, left_s: float, unfit: str) -> str:
    """Why a job can't begin any more; empty where it can."""
    if job.cards > cards:
        return "cards"
    if job.seconds > left_s - GRACE_S:
        return "time"
    return f"no judge: {unfit}" if job.judges and unfit else ""


def play(names: list[str], cards: int, until: float, results: Results, folder: Path, unfit: str, vllm: str) -> None:
    """All jobs; what they say goes by files in `folder` into `results`."""
    waiting, running, free = list(names), list[Running](), set(range(cards))
    try:
        _play(waiting, running, free, until, results, folder, unfit, vllm)
    finally:  # also where this process is told to end
        for one in running:
            results.tell(one.name, one.end())
            results.note_err(one)
        results.write()


def _play(
    waiting: list[str], running: list[Running], free: set[int], until: float, results: Results, folder: Path,
    unfit: str, vllm: str,
) -> None:  # fmt: skip
    cards, written = len(free), 0.0
    while waiting or running:
        left_s = until - time.monotonic()
        for name in tuple(waiting):
            if why := left_out(JOBS[name], cards, left_s, unfit):
                waiting.remove(name)
                results.tell(name, {"state": "left out", "why": why})
        frees_s = max((one.left_s for one in running), default=0.0)
        if (chosen := next_job(waiting, len(free), frees_s)) is not None:
            taken = tuple(sorted(free)[: JOBS[chosen].cards])
            free -= set(taken)
            waiting.remove(chosen)
            running.append(Running(chosen, JOBS[chosen], taken, folder, left_s, vllm))
        for one in [one for one in running if one.over()]:
            running.remove(one)
            free |= set(one.cards)
            results.tell(one.name, one.end())
            results.note_err(one)
            written = 0.0
        if time.monotonic() - written > WRITE_S:
            results.write(running)
            written = time.monotonic()
        time.sleep(0.2)


def main() -> None:
    began = time.monotonic()
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--out", type=Path, required=True)
    ask.add_argument("--jobs", nargs="+", choices=tuple(JOBS), default=list(JOBS))
    ask.add_argument("--limit-s", type=float, default=3600.0)
    ask.add_argument("--vllm-path", default="")
    said = ask.parse_args()
    import torch

    cards = torch.cuda.device_count()
    head = {"cards": [torch.cuda.get_device_name(card) for card in range(cards)], "torch": str(torch.__version__)}
    results = Results(said.out, head)
    results.write()
    judging = any(JOBS[name].judges for name in said.jobs)
    unfit = asyncio.run(fit(cards)) if judging else ""
    if unfit:
        print(f"this machine can't judge: {unfit}", flush=True)
    with tempfile.TemporaryDirectory(prefix="everything-") as folder:
        play(said.jobs, cards, began + said.limit_s, results, Path(folder), unfit, said.vllm_path)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    main()
