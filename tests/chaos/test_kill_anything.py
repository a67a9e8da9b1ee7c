"""Kill -9 whatever runs, while it runs: the run goes on by itself, nothing is lost and nothing is trained twice.

Real processes, a real broker, the shipped policy. The record that the run leaves is what is judged.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from core.record import reading

ROOT = Path(__file__).parents[2]
STEPS = 5
OVERRIDES = [
    f"run.steps={STEPS}",
    "run.name=chaos",
    "sampler.groups_per_step=1",
    "sampler.group_size=4",
    "sampler.max_staleness=2",
    "checkpoints.every_steps=1",
    "tasks.heldout=[{kind='composed', count=2, seed=12, split='heldout'}]",
    "tasks.train=[{kind='composed', count=8, seed=11, split='train'}]",
    "bus.beat_s=1",
    "bus.dead_after_s=6",
    "judge.workers=1",
]


def up(folder, more=()):
    return subprocess.Popen(
        [sys.executable, "-m", "runners.cli", "up", "configs/demo.toml", f'run.folder="{folder}"', *OVERRIDES, *more],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def process_of(supervisor, words):
    for child in psutil.Process(supervisor.pid).children():
        try:
            if words in " ".join(child.cmdline()):
                return child
        except psutil.Error:
            continue
    return None


def wait_for(what, condition, supervisor, timeout_s=240):
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if condition():
            return
        assert supervisor.poll() is None, f"the run ended while waiting for {what}:\n{supervisor.stdout.read()}"
        time.sleep(0.2)
    raise AssertionError(f"{what} did not come within {timeout_s} s")


def steps_done(folder):
    path = folder / "chaos" / "record" / "steps.jsonl"
    return sum(step.kind == "step" for step in reading.steps(folder / "chaos")) if path.exists() else 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_is_stopped_and_resumed_and_every_actor_and_the_broker_may_die(tmp_path):
    supervisor = up(tmp_path)
    killed = []
    try:
        wait_for("step 1", lambda: steps_done(tmp_path) >= 1, supervisor)
        supervisor.send_signal(signal.SIGINT)
        output, _ = supervisor.communicate(timeout=90)
        assert supervisor.returncode == 130, output
        assert "goes on from here" in output
        assert left_running(tmp_path) == []
        assert reading.ledger(tmp_path / "chaos").balanced
        supervisor = up(tmp_path)
        for after, words in [(1, "generator"), (2, "evaluator"), (3, "learner"), (4, "nats-server")]:
            wait_for(f"step {after}", lambda after=after: steps_done(tmp_path) >= after, supervisor)
            wait_for(words, lambda words=words: process_of(supervisor, words) is not None, supervisor, 30)
            victim = process_of(supervisor, words)
            victim.send_signal(signal.SIGKILL)
            killed.append(victim.pid)
        output, _ = supervisor.communicate(timeout=400)
        assert supervisor.returncode == 0, output
    finally:
        if supervisor.poll() is None:
            for child in psutil.Process(supervisor.pid).children(recursive=True):
                child.kill()
            supervisor.kill()
    ledger = reading.ledger(tmp_path / "chaos")
    assert ledger.balanced, ledger.problems
    assert ledger.finished and ledger.step == STEPS
    assert ledger.groups.trained == STEPS
    assert ledger.episodes.trained + ledger.episodes.rejected_total == 4 * STEPS
    assert ledger.groups.pending == 0
    assert not ledger.episodes.rejected, "a death is nobody's fault: no episode may be lost to it"
    assert len(killed) == 4 and not any(_lives(pid) for pid in killed)
    assert left_running(tmp_path) == []


def left_running(folder):
    return [p.pid for p in psutil.process_iter(["cmdline"]) if str(folder) in " ".join(p.info["cmdline"] or [])]


def _lives(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
