"""All that only cards can show, in one go on one or two of them: `python -m tests.gpu.everything --out FOLDER`.

    --jobs chaos learner     these alone, in this order (default: all, as far as time goes)
    --limit-s 560            nothing is begun that would not be over by then; what runs is ended
    --vllm-path FOLDER       where vLLM is when it is not installed: for the jobs that need it

Each job is a command of its own. One that needs a card gets one to itself, one that needs two waits for both. Its JSON
goes to FOLDER/name.json, the end of what else it said to FOLDER/name.err; a line tells when each is over. First a judge
proves itself: its children may see other packages than it does.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, NamedTuple

from core.evaluation.pool import JudgeError, JudgePool
from core.evaluation.settings import JudgeSettings

ROOT = Path(__file__).parents[2]
ERR_BYTES = 40_000
TESTS = ("training/test_fresh_memory.py", "training/test_flash.py", "training/test_snapshot_gpu.py")
JUDGE_TESTS = ("test_gpu_stage.py", "test_gpu_kinds.py", "test_gpu_faults.py", "test_gpu_clock_device.py")


class Job(NamedTuple):
    cards: int
    seconds: int
    """What it took on H200s, about; it is not begun with less time than that."""
    words: tuple[str, ...]
    vllm: bool = False


def tests(*files: str) -> tuple[str, ...]:
    return ("pytest", "-m", "gpu", "-q", "-p", "no:cacheprovider", *(f"tests/unit/{name}" for name in files))


JOBS: dict[str, Job] = {
    "chaos": Job(1, 245, ("tests.benchmarks.gpu_chaos", "--workers", "8", "--endless-wall", "2.5")),
    "learner": Job(1, 120, ("tests.benchmarks.learner",)),
    "memory": Job(1, 55, ("tests.benchmarks.gpu_memory",)),
    "learner-4b": Job(2, 130, (
        "tests.benchmarks.learner", "--model", "4b", "--ranks", "2", "--shapes", "2x16384,16x2048", "--no-trl",
        "--limit", "120",
    )),
    "rollout": Job(2, 190, ("tests.benchmarks.rollout", "--limit-s", "230"), vllm=True),
    "whole": Job(1, 235, ("tests.gpu.whole_system", "--limit-s", "235"), vllm=True),
    "whole-apart": Job(2, 200, ("tests.gpu.whole_system", "--apart", "--limit-s", "260"), vllm=True),
    "corpus": Job(1, 180, ("tests.hacks.gpu.gpu_corpus", "--workers", "10")),
    "judge": Job(1, 345, ("tests.benchmarks.judge_gpu",)),
    "tests": Job(1, 200, tests(*TESTS)),
    "judge-tests": Job(1, 200, tests(*(f"evaluation/{name}" for name in JUDGE_TESTS))),
    "starters": Job(1, 60, ("tests.gpu.judge_starters",)),
}  # fmt: skip


class Running(NamedTuple):
    process: subprocess.Popen
    cards: tuple[int, ...]
    began: float
    err: IO[bytes]


async def fit() -> None:
    """Raises JudgeError where a judge can't work, or fails right kernels (core.evaluation.proof)."""
    pool = JudgePool(JudgeSettings(speed="none"), workers=1)
    try:
        await pool.start()
    finally:
        await pool.stop()


def start(name: str, job: Job, cards: tuple[int, ...], out: Path, vllm_path: str) -> Running:
    paths = [vllm_path] if job.vllm and vllm_path else []
    paths += [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH", "")])]
    err = (out / f"{name}.err").open("wb")
    process = subprocess.Popen(
        [sys.executable, "-m", *job.words], cwd=ROOT, stdout=(out / f"{name}.json").open("wb"), stderr=err,
        start_new_session=True,
        env={
            **os.environ, "PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1",
            "CUDA_VISIBLE_DEVICES": ",".join(map(str, cards)),
        },
    )  # fmt: skip
    return Running(process, cards, time.monotonic(), err)


def end(name: str, running: Running, out: Path) -> None:
    """Told, and what it said cut to its end."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(running.process.pid, signal.SIGKILL)
    code = running.process.wait()
    running.err.close()
    said = out / f"{name}.err"
    said.write_bytes(said.read_bytes()[-ERR_BYTES:])
    told = {"job": name, "code": code, "cards": running.cards, "seconds": round(time.monotonic() - running.began, 1)}
    print(json.dumps(told), flush=True)


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--out", type=Path, required=True)
    ask.add_argument("--jobs", nargs="+", choices=tuple(JOBS), default=list(JOBS))
    ask.add_argument("--limit-s", type=float, default=3600.0)
    ask.add_argument("--vllm-path", default="")
    said = ask.parse_args()
    try:
        asyncio.run(fit())
    except JudgeError as error:
        raise SystemExit(f"this machine can't judge: {error}") from None
    import torch

    cards = torch.cuda.device_count()
    names = [torch.cuda.get_device_name(card) for card in range(cards)]
    said.out.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + said.limit_s
    print(json.dumps({"cards": names, "jobs": said.jobs}), flush=True)
    waiting, running = list(said.jobs), {}
    free = set(range(cards))
    while waiting or running:
        left = until - time.monotonic()
        for name in list(waiting):
            job = JOBS[name]
            if job.cards > cards or job.seconds > left:
                waiting.remove(name)
                print(json.dumps({"job": name, "left_out": "cards" if job.cards > cards else "time"}), flush=True)
            elif job.cards <= len(free):
                taken = tuple(sorted(free)[: job.cards])
                free -= set(taken)
                waiting.remove(name)
                running[name] = start(name, job, taken, said.out, said.vllm_path)
            elif job.cards > 1:
                break  # who comes later must not keep it waiting for ever
        for name, one in list(running.items()):
            if one.process.poll() is not None or left <= 0:
                end(name, one, said.out)
                free |= set(one.cards)
                del running[name]
        time.sleep(0.2)


if __name__ == "__main__":
    main()
