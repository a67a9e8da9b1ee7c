"""The chaos benchmark's workers: one that is lost is replaced, and no candidate is lost with it."""

import os
from argparse import Namespace

import msgspec
import pytest

from tests.benchmarks import gpu_chaos
from tests.benchmarks.gpu_chaos_kinds import Job, tasks


def worker(number, args, folder, work, results, ready):
    """Answers with what it takes; loses its context, or is killed, once for each word that says so."""
    ready.put(number)
    while (message := work.get()) is not None:
        results.put({"took": number, "message": message})
        mark = os.path.join(folder, message)
        if not os.path.exists(mark):
            open(mark, "w").close()
            if "lost" in message:
                results.put({"lost": number, "key": message, "why": "its context"})
                break
            if "killed" in message:
                results.close()
                results.join_thread()
                os._exit(9)
        results.put({"worker": number, "key": message})
    else:
        results.put({"ended": number})


def test_a_worker_that_is_lost_is_replaced_with_its_candidate(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_chaos, "LOOK_S", 0.2)
    workers = gpu_chaos.Workers(2, None, str(tmp_path), target=worker)
    try:
        words = ["a", "lost 1", "b", "killed", "lost 2", "c"]
        for number, word in enumerate(words):
            workers.queues[number % 2].put(word)
        found = workers.collect(len(words))
        for work in workers.queues:
            work.put(None)
        assert sorted(one["ended"] for one in workers.collect(2)) == [0, 1]
    finally:
        workers.stop(5.0)
    assert sorted(one["key"] for one in found) == sorted(words)
    assert sorted(workers.lost) == ["ended with 9", "its context", "its context"]


def test_workers_that_are_lost_for_ever_are_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_chaos, "MOST_LOST", 0)
    workers = gpu_chaos.Workers(1, None, str(tmp_path), target=worker)
    try:
        workers.queues[0].put("lost")
        with pytest.raises(RuntimeError, match="its context"):
            workers.collect(1)
    finally:
        workers.stop()


def test_the_whole_way_of_a_right_candidate_can_be_tried_without_a_gpu(tmp_path):
    args = Namespace(device="cpu", walls="namespaces", wall=120.0, endless_wall=5.0, probe_mb=4)
    task, source = tasks("cpu")["relu_small"]
    workers = gpu_chaos.Workers(1, args, str(tmp_path))
    try:
        workers.ready.get(timeout=180)
        job = Job(key="k", task=task, kind="good", source=source)
        workers.queues[0].put(msgspec.msgpack.encode(job))
        (found,) = workers.collect(1)
        assert found["verdict"] == "pass", found["feedback"]
        workers.queues[0].put(None)
        assert workers.collect(1)[0]["measured_again"] == 0
    finally:
        workers.stop(30.0)
