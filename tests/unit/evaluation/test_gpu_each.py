"""What is done for one of several GPUs is done for that one: probes, NVML's handles, checks of the doctor, `judge --gpu`."""

import argparse
import asyncio
import os

import pytest

from core.evaluation.gpu import probe, processes
from core.evaluation.gpu.shared import Shared
from core.evaluation.walls import gpu
from runners import doctor, judge
from runners.usage import UsageError

UUIDS = [f"GPU-{number}86a8de3-d1a4-7f52-bb3d-100d5c5aab3f" for number in range(3)]


@pytest.fixture
def three(monkeypatch):
    found = tuple(gpu.Card(uuid, f"/dev/nvidia{number}") for number, uuid in enumerate(UUIDS))
    monkeypatch.setattr(gpu, "cards", lambda: found)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "")  # restored as it was, whatever is set here
    monkeypatch.delenv("CUDA_DEVICE_ORDER")


@pytest.mark.parametrize(
    ("shown", "device", "uuid"),
    [(None, "cuda:2", UUIDS[2]), ("1,2", "cuda:1", UUIDS[2]), ("2,1", "cuda:0", UUIDS[2]), ("GPU-1,0", "cuda:0", UUIDS[1])],
)  # fmt: skip
def test_a_cold_probe_is_of_the_gpu_that_was_asked_for(three, monkeypatch, tmp_path, shown, device, uuid):
    """The probing process is shown that one alone, so that it is the first there."""
    if shown is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    program = tmp_path / "says.py"
    program.write_text(
        "import os, sys\n"
        "print(os.environ['CUDA_VISIBLE_DEVICES'], os.environ['CUDA_DEVICE_ORDER'], sys.argv[1], file=sys.stderr)\n"
        "sys.exit(3)\n"
    )
    monkeypatch.setattr(probe, "PROGRAM", program)
    assert probe.cold(device).why == f"a probe ended with 3: {uuid} PCI_BUS_ID cuda:0"


def test_nvml_is_asked_for_a_whole_uuid(three, monkeypatch):
    class Library:
        nvmlDeviceGetHandleByUUID = staticmethod(lambda name: name.decode())
        nvmlDeviceGetHandleByIndex = staticmethod(lambda number: number)

    handles = []
    for shown in ("GPU-2", UUIDS[1], "MIG-4", "2,1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
        handles.append(processes._handle(Library, "cuda:0"))
    assert handles == [UUIDS[2], UUIDS[1], "MIG-4", 2]


def test_a_gpu_without_a_uuid_has_a_name_too(monkeypatch):
    monkeypatch.setattr(processes, "_nvml", lambda: None)
    monkeypatch.setattr(gpu, "cards", lambda: (gpu.Card("", "/dev/nvidia0"), gpu.Card("", "/dev/nvidia1")))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert processes.identity("cuda:0") == "cuda-1"


def test_a_gpu_is_called_the_same_before_its_first_use_and_after(monkeypatch, tmp_path):
    """The driver's folder tells its UUID from then on, nvidia-smi at once."""
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ntest \"$1 $2\" = '--id=1 --query-gpu=uuid' && echo {UUIDS[1]}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(processes, "_nvml", lambda: None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    names = []
    for uuid in ("", UUIDS[1]):
        monkeypatch.setattr(
            gpu, "cards", lambda uuid=uuid: (gpu.Card("", "/dev/nvidia0"), gpu.Card(uuid, "/dev/nvidia1"))
        )
        names.append(processes.identity("cuda:0"))
    assert names == [UUIDS[1]] * 2


def test_a_slice_of_a_gpu_has_a_state_of_its_own(monkeypatch, tmp_path):
    monkeypatch.setattr(processes, "_nvml", lambda: None)
    states = []
    for number in range(2):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"MIG-{UUIDS[0]}/{number}/0")
        states.append(Shared(processes.identity("cuda:0"), tmp_path))
        with states[-1].change() as kept:
            kept.entries += 1
    assert [one.look().entries for one in states] == [1, 1]


def test_the_doctor_looks_at_each_gpu(three, monkeypatch):
    """A confined process that has the first one says nothing of the others."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,2")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)

    class Zygote:
        def __init__(self, walls, slot):
            self.slot = slot

        def start(self):
            self.card = gpu.environment(restricted=True)["CUDA_VISIBLE_DEVICES"]

        def wait_ready(self):
            pass

        def begin(self, limits):
            pass

        def ask(self, command, device):
            assert (command, device) == ("start", "cuda:0")
            if self.card == UUIDS[2]:
                raise spawn.ChildFailed("start", error={"message": f"no {self.card}"})

        def stop(self):
            pass

    from core.evaluation.gpu import spawn

    monkeypatch.setattr(spawn, "GpuZygote", Zygote)
    before = dict(os.environ)
    first, second = doctor.gpu_judge()
    assert (first.ok, first.what, second.ok, second.what) == (True, "gpu judge 0", False, "gpu judge 1")
    assert UUIDS[2] in second.found and dict(os.environ) == before


def test_one_kernel_by_hand_is_judged_on_the_gpu_that_its_child_gets(three, monkeypatch, tmp_path):
    """CUDA's own order of different GPUs puts the fastest first; behind the walls they are in PCI order."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    seen = {}

    def opened(settings):
        seen.update(os.environ)
        raise OSError("enough")

    monkeypatch.setattr("core.evaluation.tiers.open_judge", opened)
    parser = argparse.ArgumentParser()
    judge.add_parser(parser.add_subparsers())
    for name in ("task", "candidate"):
        (tmp_path / f"{name}.py").write_text("")
    files = ["--task", str(tmp_path / "task.py"), "--candidate", str(tmp_path / "candidate.py")]
    with pytest.raises(UsageError, match="enough"):
        judge.run(parser.parse_args(["judge", *files, "--gpu"]))
    assert (seen["CUDA_VISIBLE_DEVICES"], seen["CUDA_DEVICE_ORDER"]) == (UUIDS[1], "PCI_BUS_ID")


@pytest.mark.parametrize(("shown", "has"), [(None, True), ("1", True), ("", False), ("-1", False)])
def test_gpus_that_a_person_hides_are_none(three, monkeypatch, shown, has):
    from runners.preflight import has_gpu

    if shown is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    assert has_gpu() is has


def test_actors_of_one_supervisor_number_cards_alike(monkeypatch, tmp_path):
    """Whatever order the person's shell asks for: judges number them by PCI address."""
    from runners.processes import Child

    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    lines = []
    code = "import json, os; print(json.dumps({'event': os.environ['CUDA_DEVICE_ORDER']}))"
    child = Child("learner-0", ["-c", code], tmp_path / "log", restart_after_s=0.1, give_up_after=1,
                  on_line=lambda name, event: lines.append(event["event"]))  # fmt: skip
    asyncio.run(child.keep_running())
    assert lines == ["PCI_BUS_ID"]


def test_an_evaluation_takes_the_cards_of_a_run(three, monkeypatch, tmp_path):
    """Engine and judges are of one process, and each has its own."""
    from configs.load import load
    from core.evaluation import pool
    from runners import evaluate

    class Enough(Exception):
        pass

    seen = {}

    class Engine:
        async def start(self):
            seen["engine"] = os.environ["CUDA_VISIBLE_DEVICES"]
            raise Enough

        async def stop(self):
            pass

    async def started(self):
        seen["judges"] = [gpu.one_gpu(one._slot, one._gpus)["CUDA_VISIBLE_DEVICES"] for one in self._workers]

    path = tmp_path / "run.toml"
    path.write_text(
        'model.path = "m"\njudge.device_class = "gpu"\njudge.speed = "measured"\njudge.workers = 3\n'
        "judge.cards = [2, 0]\nrollout.cards = [1]\n"
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    monkeypatch.setattr(pool.JudgePool, "start", started)
    monkeypatch.setattr("core.generation.load.load_engine", lambda *_, **__: Engine())
    with pytest.raises(Enough):
        asyncio.run(evaluate.measure(load(path), []))
    assert seen == {"engine": "1", "judges": [UUIDS[2], UUIDS[0], UUIDS[2]]}
