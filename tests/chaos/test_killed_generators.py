"""Kill -9 a generator in the middle of a group: what it had finished stands, and nobody plays it again.

Real processes, a real broker, the shipped policy.
"""

import json
import signal

import psutil
import pytest

from core.record import reading
from tests.chaos.test_kill_anything import left_running, process_of, up, wait_for

ROWS = ["rollout.batch_rows=2", "local.generators=1", "sampler.group_size=8",
        "sampler.max_staleness=0", "run.steps=1", "run.name=killed",
        "bus.dead_after_s=3"]  # fmt: skip


@pytest.mark.timeout(200)
def test_episodes_of_a_killed_generator_are_played_by_nobody_else(tmp_path):
    supervisor = up(tmp_path, ROWS)
    try:
        wait_for("episodes", lambda: len(told(tmp_path)) >= 2, supervisor, 90)
        process_of(supervisor, "generator").send_signal(signal.SIGKILL)
        before = set(told(tmp_path))
        output, _ = supervisor.communicate(timeout=120)
        assert supervisor.returncode == 0, output
    finally:
        if supervisor.poll() is None:
            for child in psutil.Process(supervisor.pid).children(recursive=True):
                child.kill()
            supervisor.kill()
    ledger = reading.ledger(tmp_path / "killed")
    assert ledger.balanced, ledger.problems
    assert ledger.episodes.trained + ledger.episodes.rejected_total == 8 and not ledger.episodes.rejected
    assert len(told(tmp_path)) == len(set(told(tmp_path))) == 8
    (taken,) = [line for line in lines(tmp_path) if line.get("event") == "group taken over"]
    assert {(taken["trace"], index) for index in taken["standing"]} >= before
    assert sorted(taken["standing"] + taken["missing"]) == list(range(8))
    assert left_running(tmp_path) == []


def lines(folder):
    """Log lines of the generators, as structures."""
    return [json.loads(line) for path in (folder / "killed" / "logs").glob("generator*")
            for line in path.read_text().splitlines() if line.startswith("{")]  # fmt: skip


def told(folder):
    """(group, index) of every episode in the archive, as often as it was published."""
    path = folder / "killed"
    if not (path / "record" / "episodes.msgpack").exists():
        return []
    return [(ended.episode.group_id, ended.episode.index) for ended in reading.episodes(path)]
