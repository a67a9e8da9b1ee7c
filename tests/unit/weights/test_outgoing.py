"""The learner's hand-over: a source for whoever comes, the folder for whoever comes later still."""

import socket
import threading

import pytest
import torch
from safetensors.torch import load_file

from core.weights import filesystem
from core.weights.fingerprint import fingerprint
from core.weights.incoming import receive
from core.weights.outgoing import Outgoing

CPU = torch.device("cpu")


def tensors(seed):
    g = torch.Generator().manual_seed(seed)
    return [("a.weight", torch.randn(40, 30, generator=g)), ("b.bias", torch.randn(30, generator=g).bfloat16())]


@pytest.fixture
def outgoing():
    made = Outgoing("nccl", device=CPU, timeout_s=20)
    yield made
    made.close()


def test_an_engine_that_starts_late_gets_the_version_that_stands(outgoing, tmp_path):
    manifest = outgoing.publish(tmp_path, 7, tensors(1))
    for _ in range(2):
        received = receive(manifest.source, device=CPU, timeout_s=20)
        assert fingerprint(received.tensors) == manifest.fingerprint == fingerprint(tensors(1))


def test_the_folder_stands_when_the_learner_is_gone(tmp_path):
    outgoing = Outgoing("nccl", device=CPU, timeout_s=20)
    manifest = outgoing.publish(tmp_path, 3, tensors(2))
    outgoing.close()
    folder = filesystem.version_folder(tmp_path, 3)
    assert filesystem.read_manifest(folder).fingerprint == manifest.fingerprint
    assert fingerprint(filesystem.read(folder).items()) == fingerprint(tensors(2))
    with pytest.raises(FileNotFoundError, match="no longer offers"):
        receive(manifest.source, device=CPU, timeout_s=2)


def test_steps_do_not_wait_for_a_slow_copy(outgoing, tmp_path, monkeypatch):
    go, write = threading.Event(), filesystem.publish

    def slow(*args, **kwargs):
        assert go.wait(20)
        return write(*args, **kwargs)

    monkeypatch.setattr(filesystem, "publish", slow)
    sources = [outgoing.publish(tmp_path, version, tensors(version)).source for version in (1, 2, 3)]
    assert outgoing.copies_left_out == 2
    assert fingerprint(receive(sources[-1], device=CPU, timeout_s=20).tensors) == fingerprint(tensors(3))
    go.set()
    outgoing.close()
    assert filesystem.versions(tmp_path) == [1]


def test_a_copy_that_failed_is_told_with_the_next_version(outgoing, tmp_path):
    (tmp_path / "file").write_text("")
    outgoing.publish(tmp_path / "file", 1, tensors(1))
    outgoing._copy.exception(timeout=20)
    with pytest.raises(FileExistsError):
        outgoing.publish(tmp_path / "file", 2, tensors(2))


def test_the_first_free_port_of_the_range_is_taken(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        outgoing = Outgoing("nccl", device=CPU, ports=(port, port + 3), timeout_s=20)
        assert port < int(outgoing.publish(tmp_path, 1, tensors(1)).source.split(":")[2].split("/")[0]) <= port + 3
        outgoing.close()
        with pytest.raises(OSError, match="none could be opened"):
            Outgoing("nccl", device=CPU, ports=(port, port), timeout_s=2)


def test_ipc_without_a_card_is_refused():
    with pytest.raises(ValueError, match=r"the learner runs on cpu: set weights\.transport = 'filesystem'"):
        Outgoing("ipc", device=CPU)


def test_ipc_from_another_host_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"not on host .*one card of one host"):
        receive(f"ipc:{tmp_path}/elsewhere/v000001.ipc", device=CPU, timeout_s=1)


def test_a_newer_incarnation_retires_the_older_ones(tmp_path):
    for incarnation in (1, 2, 3, 12):
        filesystem.publish(filesystem.incarnation_folder(tmp_path, incarnation), 4, tensors(incarnation))
    assert filesystem.retire(tmp_path, 12) == [1, 2, 3]
    assert filesystem.retire(tmp_path, 2) == []
    assert [path.name for path in tmp_path.iterdir()] == ["i012"]


def test_runs_that_share_a_folder_leave_each_others_weights_alone(tmp_path):
    """As recipes do that extend one another and inherit weights.folder."""
    roots = {run: filesystem.run_root(str(tmp_path), run, tmp_path / "own" / run) for run in ("a", "b")}
    for value, root in enumerate(roots.values()):
        filesystem.publish(filesystem.incarnation_folder(root, 0), 4, tensors(value))
    filesystem.publish(filesystem.incarnation_folder(roots["b"], 1), 5, tensors(9))
    assert filesystem.retire(roots["b"], 1) == [0]
    kept = filesystem.version_folder(filesystem.incarnation_folder(roots["a"], 0), 4)
    got = load_file(kept / "model.safetensors")
    assert all(torch.equal(got[name], tensor) for name, tensor in tensors(0))
    assert filesystem.run_root("", "a", tmp_path / "own") == tmp_path / "own"
