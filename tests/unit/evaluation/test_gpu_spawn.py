"""Orders in a row and children ahead of time: what fails is told by its own name, and never twice."""

import os
import signal
import time

import pytest

from core.evaluation.gpu import processes as gpu_processes
from core.evaluation.gpu.spawn import ChildFailed, GpuZygote
from core.evaluation.walls import sandbox
from core.evaluation.walls.sandbox import Limits

LIMITS = Limits(memory_mb=8192, wall_s=30.0, tmp_mb=64, threads=64, allow_processes=True)


@pytest.fixture(scope="module")
def running():
    zygote = GpuZygote(sandbox.probe(), slot=96)
    zygote.start()
    zygote.wait_ready()
    yield zygote
    zygote.stop()


@pytest.fixture
def zygote(running):
    yield running
    if running.running:
        running.end()


def test_orders_wait_for_nobody_and_the_next_question_takes_their_answers(zygote):
    zygote.begin(LIMITS, "start", "cpu")
    zygote.order("import", "import torch\nclass ModelNew(torch.nn.Module):\n    pass\n")
    assert zygote.ask("construct", ["list", [["list", []], ["dict", []]]]) == {}
    zygote.settle()


def test_an_order_that_failed_is_named_by_whoever_asks_next(zygote):
    zygote.begin(LIMITS, "start", "cpu")
    zygote.order("import", "raise ValueError('no')")
    for _ in range(50):  # the child is gone meanwhile; that must not hide why
        zygote.order("readings")
    with pytest.raises(ChildFailed) as failure:
        zygote.ask("readings")
    assert failure.value.doing == "import"
    assert failure.value.error["message"] == "no"
    assert not zygote.running


def test_a_child_ahead_is_taken_by_the_same_order(zygote):
    zygote.ahead(LIMITS, "start", "cpu")
    assert zygote.running
    wire = zygote._wire
    zygote.begin(LIMITS, "start", "cpu")
    assert zygote._wire is wire
    assert zygote.ask("readings") == []


def test_a_child_ahead_of_another_order_is_ended(zygote):
    zygote.ahead(LIMITS, "start", "cpu")
    wire = zygote._wire
    zygote.begin(Limits(memory_mb=4096, wall_s=30.0, allow_processes=True), "start", "cpu")
    assert zygote._wire is not wire
    assert zygote.ask("readings") == []


def test_a_child_ahead_that_could_not_start_is_replaced(zygote):
    zygote.ahead(LIMITS, "start", "cuda:99")
    zygote.begin(LIMITS, "start", "cuda:99")
    with pytest.raises(ChildFailed):
        zygote.settle()
    zygote.begin(LIMITS, "start", "cpu")
    assert zygote.ask("readings") == []


def test_a_child_that_is_ahead_has_its_whole_time_when_it_is_taken(zygote):
    zygote.ahead(LIMITS, "start", "cpu")
    zygote.deadline -= 29.9
    zygote.begin(LIMITS, "start", "cpu")
    assert zygote.ask("readings") == []


def _kill_child(zygote):
    """SIGKILL to whoever has no child below the zygote, from outside; returns when it is gone."""
    below = gpu_processes.below(zygote.pid)
    leaves = [process for process in below if not gpu_processes.below(process.pid)]
    assert len(leaves) == 1
    os.kill(leaves[0].pid, signal.SIGKILL)
    while gpu_processes.alive(leaves[0]):
        pass


@pytest.mark.parametrize("baseline", [False, True])
def test_a_child_killed_between_two_orders_is_told_as_what_it_was(zygote, baseline):
    """A baseline that somebody killed is no crash of the candidate that is judged beside it."""
    zygote.begin(LIMITS, "start", "cpu")
    zygote.settle()
    zygote.baseline = baseline
    try:
        _kill_child(zygote)
        with pytest.raises(ChildFailed) as failure:
            for _ in range(3):
                zygote.ask("readings")
    finally:
        zygote.baseline = False
    assert failure.value.baseline is baseline and failure.value.code == -signal.SIGKILL


def test_a_childs_time_stands_still_while_nobody_asks_it(zygote):
    zygote.begin(LIMITS, "start", "cpu")
    zygote.settle()
    left_s = zygote.deadline - time.monotonic()
    zygote._idle_since -= 100.0  # as if a hundred seconds had gone by in waiting for the GPU
    zygote.deadline -= 100.0
    assert zygote.ask("readings") == []
    assert left_s - 5.0 < zygote.deadline - time.monotonic() <= left_s + 0.1


def test_a_child_that_works_uses_up_its_time_and_one_that_does_not_read_too(zygote):
    zygote.begin(LIMITS, "start", "cpu")
    zygote.settle()
    zygote.deadline = zygote._idle_since + 0.3
    with pytest.raises(ChildFailed) as failure:
        zygote.ask("import", "while True: pass")
    assert failure.value.timed_out and not zygote.running
    zygote.begin(LIMITS, "start", "cpu")
    zygote.settle()
    zygote.deadline = zygote._idle_since + 0.3
    zygote.order("import", "while True: pass")
    with pytest.raises(ChildFailed) as failure:
        zygote.order("import", "#" * (8 << 20))
    assert failure.value.timed_out and not zygote.running
