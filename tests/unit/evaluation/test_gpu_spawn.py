"""Orders in a row and children ahead of time: what fails is told by its own name, and never twice."""

import pytest

from core.evaluation import sandbox
from core.evaluation.gpu_spawn import ChildFailed, GpuZygote
from core.evaluation.sandbox import Limits

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
