"""Weights over a group formed for the hand-over (gloo here, NCCL between cards): who joins, who is late, who dies."""

import multiprocessing
import os
import threading

import pytest
import torch

from core.weights import filesystem, nccl
from core.weights.fingerprint import fingerprint
from core.weights.incoming import receive

CPU = torch.device("cpu")


def tensors(seed=0):
    g = torch.Generator().manual_seed(seed)
    return [
        ("a.weight", torch.randn(70, 9, generator=g)),
        ("odd", torch.randn(3, generator=g).bfloat16()),
        ("b.weight", torch.randn(300, 40, generator=g).bfloat16()),
        ("scalar", torch.tensor(2.0)),
    ]


@pytest.fixture
def sender():
    made = nccl.Sender("127.0.0.1", device=CPU, join_s=0.05, timeout_s=20, bucket_bytes=4096)
    yield made
    made.close()


def same(received, expected):
    assert [name for name, _ in received.tensors] == [name for name, _ in expected]
    for (_, got), (_, wanted) in zip(received.tensors, expected, strict=True):
        assert got.dtype == wanted.dtype and torch.equal(got, wanted)


def test_engines_that_join_together_and_later_all_get_the_snapshot(sender):
    mine = tensors()
    source, manifest = sender.offer(4, mine)
    assert manifest.fingerprint == fingerprint(mine) and manifest.version == 4
    mine[0][1].zero_()  # the learner trains on
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(receive(source, device=CPU, timeout_s=20))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found.append(receive(source, device=CPU, timeout_s=20))  # a round of its own
    for received in found:
        same(received, tensors())
        assert fingerprint(received.tensors) == manifest.fingerprint
    assert sum(round_["receivers"] for round_ in sender.rounds) == 4 and not sender.failures


def test_a_newer_version_replaces_an_older_one(sender):
    old, _ = sender.offer(1, tensors(1))
    new, _ = sender.offer(2, tensors(2))
    with pytest.raises(FileNotFoundError, match="no longer offers nccl"):
        receive(old, device=CPU, timeout_s=5)
    same(receive(new, device=CPU, timeout_s=20), tensors(2))


def test_a_version_offered_again_after_a_rollback_is_the_new_one(sender):
    source, _ = sender.offer(1, tensors(1))
    same(receive(source, device=CPU, timeout_s=20), tensors(1))
    sender.offer(2, tensors(2))
    source, _ = sender.offer(1, tensors(3))
    same(receive(source, device=CPU, timeout_s=20), tensors(3))


def _take_a_ticket_and_die(source):
    import torch.distributed as dist

    port = int(source.split(":")[2].split("/")[0])
    dist.TCPStore("127.0.0.1", port, None, False).add(f"{source.rpartition('/')[2]}/tickets", 1)
    os._exit(9)


def test_an_engine_that_died_after_joining_costs_one_round_not_the_learner():
    sender = nccl.Sender("127.0.0.1", device=CPU, join_s=0.05, timeout_s=3)
    source, _ = sender.offer(7, tensors())
    process = multiprocessing.get_context("spawn").Process(target=_take_a_ticket_and_die, args=(source,))
    process.start()
    process.join()
    assert process.exitcode == 9
    while not sender.failures:
        threading.Event().wait(0.01)
    same(receive(source, device=CPU, timeout_s=20), tensors())
    assert len(sender.failures) == 1
    sender.close()


def test_a_learner_that_is_gone_is_a_deadline_with_a_reason(sender):
    source, _ = sender.offer(1, tensors())
    port = source.split(":")[2].split("/")[0]
    with pytest.raises(TimeoutError, match="did not arrive"):
        receive(source.replace(port, str(free_port())), device=CPU, timeout_s=1)


def free_port():
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize("source", ["nccl://host/1", "nccl://host:12", "nccl://host:12/new"])
def test_a_source_of_another_form_is_refused(source):
    with pytest.raises(ValueError, match="wanted nccl://HOST:PORT/VERSION-OFFER"):
        receive(source, device=CPU, timeout_s=1)


def test_a_folder_is_received_as_published(tmp_path):
    manifest = filesystem.publish(tmp_path, 3, tensors())
    received = receive(str(filesystem.version_folder(tmp_path, 3)), device=CPU, timeout_s=5)
    assert fingerprint(received.tensors) == manifest.fingerprint
    with pytest.raises(FileNotFoundError):
        receive(str(filesystem.version_folder(tmp_path, 4)), device=CPU, timeout_s=5)
