"""What the GPU benchmark makes of its readings, and how tasks are handed out."""

import math
import multiprocessing
import threading

import pytest

from tests.benchmarks import gpu_workers, judge_gpu


class _Clock:
    """A clock that each call of the usual way moves on."""

    def __init__(self):
        self.now_s = 0.0

    def monotonic(self):
        return self.now_s


def test_past_the_budget_wrong_huge_candidates_alone_are_counted_and_not_run(monkeypatch, tmp_path):
    clock, ran = _Clock(), []

    def one(name, side, path, trials, huge):
        clock.now_s += 8.0
        ran.append((name, side))
        return {"task": name, "side": side, "wall_s": 8.0, "setup_s": 2.0, "trial_s": 1.0}

    monkeypatch.setattr(judge_gpu, "_naive_one", one)
    monkeypatch.setattr(judge_gpu, "time", clock)
    found = judge_gpu.naive(1, 100.0, tmp_path)
    assert len(found) == 24
    wrong_huge = {(name, "wrong") for name in gpu_workers.CLASSES["huge"]}
    assert set(ran) == {(one["task"], one["side"]) for one in found} - wrong_huge
    assert all(one["counted"] == judge_gpu.CORRECTNESS for one in found if (one["task"], one["side"]) in wrong_huge)


def _one(task, side, wall_s, kind):
    return {"task": task, "side": side, "wall_s": wall_s, "kind": kind, "runtime_ms": 2.02, "baseline_ms": 4.0}


def test_rates_and_ratios():
    verdicts = [_one("huge_relu", "right", 1.0, "pass"), _one("huge_relu", "wrong", 1.0, "fail")]
    usual = [_one("huge_relu", "right", 30.0, ""), _one("huge_relu", "wrong", 10.0, "")]
    run = {"verdicts": verdicts, "wall_s": 1.0, "peak_gb": 3.0}
    found = judge_gpu.report(run, {"huge": run}, usual)
    assert found["verdicts_per_hour"] == 7200
    assert found["naive_verdicts_per_hour"] == 180
    assert found["ratio"] == found["per_class"]["huge"]["ratio"] == 40
    assert found["per_class"]["huge"]["as_wanted"] == 2


def test_agreement_is_in_percent_of_passed_candidates():
    verdicts = [_one("a", "right", 1.0, "pass"), _one("b", "wrong", 1.0, "fail")]
    alone = {name: {"runtime_ms": 2.0, "baseline_ms": 4.0} for name in "ab"}
    assert judge_gpu.agreement(verdicts, alone) == {"a": {"runtime_percent": 1.0, "baseline_percent": 0.0}}


def test_a_wrong_candidate_that_was_not_run_is_counted_from_its_right_one():
    right = {"task": "huge_relu", "side": "right", "wall_s": 99.0, "setup_s": 2.0, "trial_s": 10.0}
    found = judge_gpu._counted("huge_relu", [right])
    assert (found["wall_s"], found["counted"]) == (52.0, judge_gpu.CORRECTNESS)


@pytest.mark.parametrize(
    ("card_gb", "workers", "wanted"),
    [(84.0, 8, 2), (84.0, 4, 2), (84.0, 3, 3), (150.0, 8, 3), (150.0, 1, 3), (24.0, 8, 1), (math.inf, 8, 3)],
)
def test_as_many_huge_tasks_at_once_as_the_card_holds(card_gb, workers, wanted):
    assert judge_gpu.huge_that_fit(card_gb, workers) == wanted


@pytest.mark.parametrize(("workers", "huge_at_once"), [(1, 1), (3, 1), (4, 2), (6, 3)])
def test_all_tasks_are_handed_out_once_and_the_huge_ones_not_all_at_once(workers, huge_at_once):
    names = [name for group in gpu_workers.CLASSES.values() for name in group]
    pipes = [multiprocessing.Pipe() for _ in range(workers)]
    lock, together, most = threading.Lock(), set(), []

    def work(end):
        while (name := end.recv()) is not None:
            with lock:
                together.add(name)
                most.append(sum(one in gpu_workers.CLASSES["huge"] for one in together))
            with lock:
                together.discard(name)
            end.send([name])

    threads = [threading.Thread(target=work, args=(theirs,)) for _, theirs in pipes]
    for thread in threads:
        thread.start()
    done, _ = gpu_workers._handed_out([ours for ours, _ in pipes], names, huge_at_once, 0.0)
    for ours, _ in pipes:
        ours.send(None)
    for thread in threads:
        thread.join()
    assert sorted(done) == sorted(names)
    assert max(most) <= huge_at_once
