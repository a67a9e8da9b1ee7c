"""Who measures sees other processes' first calls, those that are over too."""

import fcntl
import multiprocessing
import tempfile
import threading
import time

import pytest

from core.evaluation import draws, shapes
from core.evaluation.gpu import lease as gpu_lease
from core.evaluation.gpu.lease import Watch, alone_s, first_call, lease
from core.evaluation.gpu.task import GpuTask


@pytest.fixture(autouse=True)
def own_locks(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    gpu_lease._path.cache_clear()
    yield
    gpu_lease._path.cache_clear()


def _call(inside, leave):
    with first_call("cpu"):
        inside.set()
        leave.wait(30)


def test_a_first_call_elsewhere_is_seen_while_it_runs_and_once_after():
    context = multiprocessing.get_context("fork")
    inside, leave = context.Event(), context.Event()
    watch = Watch("cpu")
    assert not watch.look()
    other = context.Process(target=_call, args=(inside, leave))
    other.start()
    assert inside.wait(30)
    assert watch.look()
    assert watch.look()
    leave.set()
    other.join()
    assert not watch.look()
    watch.close()


def test_a_first_call_between_two_looks_is_seen():
    watch = Watch("cpu")
    with first_call("cpu"):
        pass
    assert watch.look()
    assert not watch.look()
    watch.close()


def test_a_process_that_dies_in_a_first_call_is_not_seen_for_ever():
    context = multiprocessing.get_context("fork")
    inside, leave = context.Event(), context.Event()
    other = context.Process(target=_call, args=(inside, leave))
    other.start()
    assert inside.wait(30)
    other.kill()
    other.join()
    watch = Watch("cpu")
    assert not watch.look()
    watch.close()


def _call_and_tell(order, started):
    started.set()
    with first_call("cpu"):
        order.put("called")


def test_first_calls_wait_while_they_are_kept_away():
    context = multiprocessing.get_context("fork")
    order, started = context.SimpleQueue(), context.Event()
    watch = Watch("cpu")
    other = context.Process(target=_call_and_tell, args=(order, started))
    with watch.kept_away(30) as alone:
        assert alone and not watch.look()
        other.start()
        assert started.wait(30)
        for _ in range(20):
            assert not watch.look() and order.empty()
            time.sleep(0.01)
        order.put("measured")
    other.join(30)
    assert other.exitcode == 0
    assert [order.get(), order.get()] == ["measured", "called"]
    assert watch.look() and not watch.look()
    watch.close()


def test_those_that_run_are_waited_for_but_not_for_ever():
    context = multiprocessing.get_context("fork")
    inside, leave = context.Event(), context.Event()
    watch = Watch("cpu")
    other = context.Process(target=_call, args=(inside, leave))
    other.start()
    assert inside.wait(30)
    with watch.kept_away(0.1) as alone:
        assert not alone and watch.look()
    ending = threading.Timer(0.1, leave.set)
    ending.start()
    with watch.kept_away(30) as alone:
        assert alone and leave.is_set()
    other.join(30)
    watch.look()
    with first_call("cpu"):  # and everybody may go on
        assert watch.look()
    watch.close()


def test_where_they_go_on_nobody_is_kept_away():
    context = multiprocessing.get_context("fork")
    inside, leave, started, order = context.Event(), context.Event(), context.Event(), context.SimpleQueue()
    watch = Watch("cpu")
    endless = context.Process(target=_call, args=(inside, leave))
    endless.start()
    assert inside.wait(30)
    with watch.kept_away(0.1) as alone:
        assert not alone
        other = context.Process(target=_call_and_tell, args=(order, started))
        other.start()
        other.join(30)
        assert other.exitcode == 0 and order.get() == "called"
    leave.set()
    endless.join(30)
    watch.close()


def test_who_measures_sees_no_first_calls_in_one_who_keeps_them_away():
    watches = [Watch("cpu"), Watch("cpu")]
    with watches[1].kept_away(30) as alone:
        assert alone and not any(watches[0].look() for _ in range(5))
    for watch in watches:
        watch.close()


def test_each_who_keeps_them_away_waits_its_own_time_for_those_that_run():
    context = multiprocessing.get_context("fork")
    inside, leave = context.Event(), context.Event()
    watches, found = [Watch("cpu"), Watch("cpu")], []
    other = context.Process(target=_call, args=(inside, leave))

    def second() -> None:
        with watches[1].kept_away(0.4) as alone:
            found.append(alone)

    thread = threading.Thread(target=second)
    with watches[0].kept_away(30) as alone:
        thread.start()
        time.sleep(0.6)  # longer than the second one waits for first calls
        assert alone and found == []
    thread.join(30)
    assert found == [True]
    other.start()
    assert inside.wait(30)
    second()
    assert found == [True, False]
    leave.set()
    other.join(30)
    for watch in watches:
        watch.close()


def test_two_who_keep_first_calls_away_take_turns():
    order: list[str] = []
    watches = [Watch("cpu"), Watch("cpu")]

    def alone(number: int) -> None:
        with watches[number].kept_away(30) as mine:
            order.append(f"{number} begins {mine}")
            time.sleep(0.05)
            order.append(f"{number} ends")

    threads = [threading.Thread(target=alone, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    first = order[0][0]
    other = "10"[int(first)]
    assert order == [f"{first} begins True", f"{first} ends", f"{other} begins True", f"{other} ends"]
    for watch in watches:
        watch.close()


def _die_while_alone(inside):
    with Watch("cpu").kept_away(30):
        inside.set()
        time.sleep(60)


def test_a_process_that_dies_while_it_keeps_them_away_keeps_nobody():
    context = multiprocessing.get_context("fork")
    inside = context.Event()
    other = context.Process(target=_die_while_alone, args=(inside,))
    other.start()
    assert inside.wait(30)
    other.kill()
    other.join()
    with first_call("cpu"):
        pass


def _measure(order, label, started):
    started.set()
    with lease("cpu", alone=True):
        order.put(label)


def test_who_measures_waits_for_shared_work_and_first_calls_wait_for_no_lease():
    context = multiprocessing.get_context("fork")
    # Not a Queue: a thread of each process feeds that, so who put first may be read second.
    order, started = context.SimpleQueue(), context.Event()
    with lease("cpu"):
        other = context.Process(target=_measure, args=(order, "measured", started))
        other.start()
        assert started.wait(30)
        with first_call("cpu"):
            assert order.empty()
        order.put("shared")
    other.join(30)
    assert other.exitcode == 0
    assert [order.get(), order.get()] == ["shared", "measured"]


def test_who_compares_lets_those_go_first_who_wait_to_measure():
    order: list[str] = []
    comparing, paused = threading.Event(), threading.Event()

    def measure() -> None:
        comparing.wait(10)
        paused.set()
        with lease("cpu", alone=True):
            order.append("measured")

    measuring = threading.Thread(target=measure)
    measuring.start()
    with lease("cpu") as held:
        comparing.set()
        paused.wait(10)
        order.append("first part")
        deadline = time.monotonic() + 10
        while "measured" not in order and time.monotonic() < deadline:
            held.pause()
        order.append("second part")
    measuring.join(10)
    assert order == ["first part", "measured", "second part"]


def test_the_time_alone_on_a_gpu_is_counted():
    before = alone_s()
    with lease("cpu") as held, held.aside():
        time.sleep(0.01)
    assert alone_s() == before, "others might as well"
    with pytest.raises(ValueError), lease("cpu", alone=True):
        time.sleep(0.02)
        raise ValueError
    assert alone_s() >= before + 0.02, "however it ended"


def _is_free():
    """Whether somebody could measure now."""
    with open(gpu_lease._path("cpu"), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def test_work_on_the_cpu_alone_keeps_nobody_from_measuring():
    with lease("cpu") as held:
        assert not _is_free()
        with pytest.raises(ValueError, match="its own"), held.aside():
            assert _is_free()
            raise ValueError("its own")
        assert not _is_free()
    assert _is_free()


SOURCE = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(64))
    def forward(self, x):
        return x * self.weight
def get_inputs():
    return [torch.rand(8, 64)]
def get_init_inputs():
    return []
"""


def test_a_task_is_compiled_and_its_parameters_are_drawn_while_others_may_measure(monkeypatch):
    seen = []

    def watched(module, name):
        original = getattr(module, name)

        def looked(*arguments, **named):
            seen.append((name, _is_free()))
            return original(*arguments, **named)

        monkeypatch.setattr(module, name, looked)

    watched(shapes, "namespace_with")
    watched(draws, "perturbed")
    with lease("cpu") as held:
        task = GpuTask(SOURCE, "t", "full", "cpu", aside=held.aside)
        assert seen == [("namespace_with", True), ("perturbed", True)] and not _is_free()
        with task.yielding(held.aside):
            task.renew_state()
        assert seen[2:] == [("perturbed", True)] and not _is_free()
        task.renew_state()  # of nobody who said that the lease may go
        assert seen[3:] == [("perturbed", False)]
    task.close()
