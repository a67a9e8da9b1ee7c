"""`kernelmill up` whole, on one card: learner, vLLM and the judge share it; one JSON line, within `--limit-s` seconds.

    python -m tests.gpu.whole_system                       all cases, one after the other, as far as time allows
    python -m tests.gpu.whole_system --cases random-ipc    chosen ones
    python -m tests.gpu.whole_system --apart               on two cards: generator and judge on the learner's neighbour

`random`: configs/qwen3-0.6b.toml on a policy of that shape with random weights, made on the spot; small groups, three
steps. `demo`: the same on the shipped policy of 1.7 M parameters, which writes kernels that the judge measures. Weights
go by card (`ipc`), through a folder (`filesystem`) or, between two cards, by NCCL (`nccl`). stderr tells when each case
begins and when its engine has started. `ok`: all steps done, the ledger balanced, every version published was put in
place with the learner's fingerprint, no actor told of an error, and the demo policy, which knows how, wrote right
kernels.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.gpu.bytecode import compile_missing
from tests.gpu.fast_folder import in_memory
from tests.gpu.random_policy import DEMO, make_policy
from tests.gpu.told import Told

CASES = ("demo-ipc", "random-filesystem", "demo-filesystem", "random-ipc")
"""The first two have both policies and both transports, and fit into the limit; the judge measures demo's kernels."""
APART_CASES = ("demo-nccl", "random-nccl", "demo-filesystem", "random-filesystem")
APART = ("rollout.cards=[1]", "judge.cards=[1]")
ROOT = Path(__file__).parents[2]
SMALL = (
    "sampler.groups_per_step=2", "sampler.group_size=4", "episodes.max_turns=2", "rollout.groups_in_flight=4",
    "rollout.vllm.cache_gb=8", "rollout.vllm.max_sequences=64", "learner.max_tokens_per_rank=8192",
    "recorder.wandb=disabled",
)  # fmt: skip
OF_POLICY = {
    "random": ("rollout.max_new_tokens=256", "model.context_tokens=8192"),
    "demo": ("rollout.max_new_tokens=320", "model.context_tokens=1536", "episodes.prompt=compact", "learner.lr=2e-4",
             "learner.kl_coef=0.0", 'tasks.train=[{kind="composed",count=64,seed=11,split="train"}]',
             'tasks.heldout=[{kind="composed",count=16,seed=12,split="heldout"}]'),
}  # fmt: skip


def words(case: str, policy: Path, folder: Path, args: argparse.Namespace) -> list[str]:
    kind, transport = case.split("-")
    said = [
        *SMALL, *OF_POLICY[kind], f"run.name={case}", f"run.folder={folder}", f"run.steps={args.steps}",
        f"model.path={policy}", f"weights.transport={transport}", f"weights.folder={folder / 'weights' / case}",
        f"rollout.vllm.eager={'false' if args.graphs else 'true'}", *(APART if args.apart else ()), *args.override,
    ]  # fmt: skip
    return [sys.executable, "-m", "runners.cli", "up", "configs/qwen3-0.6b.toml", *said]


def figures(run: Path) -> dict[str, Any]:
    """What the run's own record says."""
    from core.record import reading
    from core.record.files import RecordError

    try:
        ledger = reading.ledger(reading.run_folder(run))
        steps = reading.surviving_steps(reading.steps(run))
        facts = list(reading.facts(run))
        beats = [row for row in reading.metrics(run) if str(row.get("actor", "")).startswith("generator")]
    except (RecordError, OSError) as error:
        return {"record": str(error), "errors": errors(run)}
    last = (beats[-1].get("gauges") or beats[-1]) if beats else {}
    applied = [fact.data for fact in facts if fact.kind == "weights_applied"]
    busy = last.get("busy_s") or 0.0
    return {
        "steps": len(steps),
        "finished": ledger.finished,
        "ledger_balanced": ledger.balanced,
        "problems": ledger.problems[:5],
        "episodes": ledger.episodes.line(),
        "tokens_per_s": round(last.get("tokens_total", 0.0) / busy, 1) if busy else None,
        "versions_applied": [row["version"] for row in applied],
        "apply_s": [round(row["seconds"], 3) for row in applied],
        "paused_s": paused(run),
        "weights_refused": sum(fact.kind == "weights_refused" for fact in facts),
        "staleness_max": max((row.metrics.get("staleness/max") or 0.0 for row in steps), default=None),
        "step_s": [round(row.metrics.get("step_s") or 0.0, 2) for row in steps],
        "drift_abs_max": [row.metrics.get("drift_abs_max") for row in steps],
        "reward": [row.metrics.get("reward/mean") for row in steps],
        "correct": [row.metrics.get("correct/any") for row in steps],
        "compiled": [row.metrics.get("compiled/turn_1") for row in steps],
        "speedup": [row.metrics.get("speedup/geomean") for row in steps],
        "verdicts": dict(
            Counter(
                " ".join(filter(None, (fact.data.get("verdict"), fact.data.get("category"))))
                for fact in facts
                if fact.kind == "judged"
            )
        ),
        "engine_start": engine_started(run),
        "peak_gib": max((row.metrics.get("peak_gib") or 0.0 for row in steps), default=None),
        "errors": errors(run),
    }


def log_lines(run: Path) -> list[tuple[str, dict[str, Any]]]:
    found = []
    for path in sorted((run / "logs").glob("*")):
        for line in path.read_text(errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict):
                    found.append((path.stem, event))
    return found


def engine_started(run: Path) -> dict[str, float] | None:
    """Seconds that the generator's engine took to start, by part."""
    for _, event in log_lines(run):
        if event.get("event") == "engine started":
            return {name: seconds for name, seconds in event.items() if name.endswith("_s")}
    return None


def paused(run: Path) -> list[float]:
    return [event["paused_s"] for _, event in log_lines(run) if event.get("event") == "weights in place"]


def errors(run: Path) -> list[str]:
    """Errors and warnings that actors told, each once."""
    told = (
        f"{actor}: {event.get('event')} {event.get('why', '')} {event.get('detail', '')}".strip()[:300]
        for actor, event in log_lines(run)
        if event.get("level") in ("error", "critical")
    )
    return list(dict.fromkeys(told))[:10]


def wait(process: subprocess.Popen, case: str, run: Path, told: Told, until: float) -> int:
    """Its exit code; tells when the engine has started. Raises TimeoutExpired at `until`."""
    began = time.monotonic()
    while engine_started(run) is None and process.poll() is None and time.monotonic() < until:
        time.sleep(1.0)
    if parts := engine_started(run):
        told.add(**{case: {"engine_started_after_s": round(time.monotonic() - began, 1), **parts}})
    return process.wait(max(0.0, until - time.monotonic()))


def play(case: str, policy: Path, folder: Path, args: argparse.Namespace, told: Told) -> dict[str, Any]:
    began, limit_s = time.monotonic(), told.left_s - 18
    told.add(**{case: {"begun": True}})
    log = folder / f"{case}.out"
    with log.open("w") as out:
        process = subprocess.Popen(
            words(case, policy, folder, args), cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )  # fmt: skip
    try:
        code: int | None = wait(process, case, folder / case, told, began + limit_s)
    except subprocess.TimeoutExpired:
        code = None
        with contextlib.suppress(subprocess.TimeoutExpired, ProcessLookupError):
            process.send_signal(signal.SIGINT)
            process.wait(15)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    found = {"exit": code, "wall_s": round(time.monotonic() - began, 1), **figures(folder / case)}
    found["ok"] = (
        code == 0
        and found.get("steps") == args.steps
        and bool(found["ledger_balanced"])
        and not found["weights_refused"]
        and not found["errors"]
        and (not case.startswith("demo") or found["verdicts"].get("pass", 0) > 0)
    )
    if not found["ok"]:
        found["last_lines"] = log.read_text(errors="replace").splitlines()[-15:]
        found["tails"] = {
            path.stem: path.read_text(errors="replace")[-1500:]
            for path in sorted((folder / case / "logs").glob("*"))
            if path.stem.startswith(("generator", "learner", "evaluator"))
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=sorted({*CASES, *APART_CASES}), default=None)
    parser.add_argument("--apart", action="store_true", help="learner on card 0, generator and judge on card 1")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--limit-s", type=float, default=235.0)
    parser.add_argument("--graphs", action="store_true", help="compile and take CUDA graphs: a minute more to start")
    parser.add_argument("--tiny", action="store_true", help="a random policy of 0.3 M parameters")
    parser.add_argument("--keep", default="", help="keep the runs in this folder")
    parser.add_argument("--override", nargs="*", default=[], metavar="section.key=value")
    args = parser.parse_args()
    args.cases = args.cases or list(APART_CASES if args.apart else CASES)
    told = Told(args.limit_s, line=lambda found: {"check": "whole_system", **found})
    folder = Path(args.keep or tempfile.mkdtemp(prefix="whole-", dir=in_memory(12.0)))
    folder.mkdir(parents=True, exist_ok=True)
    if not args.keep:
        told.at_end(lambda: shutil.rmtree(folder, ignore_errors=True))
    try:
        told.add(bytecode_s=round(compile_missing(), 1))
        made: Path | None = None
        for number, case in enumerate(args.cases):
            if told.left_s < 30:
                told.add(left_out=args.cases[number:])
                break
            if case.startswith("random") and made is None:
                import torch

                made = folder / "policy"
                make_policy(made, "tiny" if args.tiny else "0.6b", torch.bfloat16, "cpu")
            policy = made if case.startswith("random") and made is not None else DEMO
            told.at_cut = lambda case=case: told.add(**{case: {"exit": None, **figures(folder / case)}})  # type: ignore[misc]
            told.add(**{case: play(case, policy, folder, args, told)})
        cases = [told.found[case] for case in args.cases if case in told.found]
        told.add(
            ok=len(cases) == len(args.cases) and all(case["ok"] for case in cases),
            paused_s=statistics.median(
                paused for case in cases for paused in case.get("paused_s", []) or [0.0]
            ) if cases else None,
        )  # fmt: skip
    except BaseException as error:
        told.add(cut=f"{type(error).__name__}: {error}")
        raise
    finally:
        told.finish()


if __name__ == "__main__":
    main()
