"""Which GPU a number means: in containers that show some, under a job's rules for devices, where a driver tells little."""

import os

import pytest

from core.evaluation.spawn import _environment
from core.evaluation.walls import gpu
from core.evaluation.walls.namespaces import Walls

UUIDS = [f"GPU-{number}86a8de3-d1a4-7f52-bb3d-100d5c5aab3f" for number in range(4)]
UNUSED = "GPU-????????-????-????-????-????????????"
HIDING = Walls(level="namespaces")


class Machine:
    """A fake machine, made GPU by GPU."""

    def __init__(self, root, monkeypatch):
        self._driver, self._files = root / "gpus", root / "dev"
        self._driver.mkdir()
        self._files.mkdir()
        self._patch, find = monkeypatch, gpu.cards
        monkeypatch.setattr(gpu, "cards", lambda: find(str(self._driver), str(self._files)))

    def told(self, place, uuid, minor, excluded="No"):
        folder = self._driver / place
        folder.mkdir()
        lines = ["Model: \t\t NVIDIA H200", f"GPU UUID: \t {uuid}", f"Device Minor: \t {minor}"]
        (folder / "information").write_text("\n".join([*lines, f"GPU Excluded:\t {excluded}", ""]))

    def files(self, *names):
        for name in names:
            (self._files / name).touch()

    def forbids(self, *names):
        """As a cgroup does: the file is there and can't be opened."""
        allows = os.access
        self._patch.setattr(
            gpu.os, "access", lambda path, mode: os.path.basename(path) not in names and allows(path, mode)
        )

    def file(self, name):
        return str(self._files / name)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("KERNELMILL_GPU_FILES", raising=False)
    return Machine(tmp_path, monkeypatch)


def uuids():
    return [card.uuid for card in gpu.cards()]


def test_a_gpu_that_a_job_may_not_open_has_no_number(machine):
    """Slurm's: all files and all of the driver's words are there, and CUDA numbers what the job was given."""
    for minor in range(4):
        machine.told(f"0000:{minor + 1}8:00.0", UUIDS[minor], minor)
    machine.files("nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidiactl")
    machine.forbids("nvidia0", "nvidia2")
    assert uuids() == [UUIDS[1], UUIDS[3]] and gpu.shown() == ["0", "1"]
    assert [gpu.one_gpu(number)["CUDA_VISIBLE_DEVICES"] for number in range(2)] == [UUIDS[1], UUIDS[3]]


def test_one_that_the_driver_was_told_to_leave_out_has_no_number(machine):
    machine.told("0000:18:00.0", UUIDS[0], 0, excluded="Yes")
    machine.told("0000:28:00.0", UUIDS[1], 1)
    machine.files("nvidia0", "nvidia1")
    assert uuids() == [UUIDS[1]]


def test_addresses_are_numbers(machine):
    machine.told("10000:01:00.0", UUIDS[0], 0)
    machine.told("2000:01:00.0", UUIDS[1], 1)
    machine.files("nvidia0", "nvidia1")
    assert uuids() == [UUIDS[1], UUIDS[0]]


def test_where_the_driver_tells_of_some_only_files_give_the_order(machine):
    """A privileged container: all files, and the words of the GPUs that it was asked for."""
    machine.told("0000:18:00.0", UUIDS[1], 1)
    machine.files("nvidia0", "nvidia1")
    assert uuids() == ["", UUIDS[1]]
    assert [gpu.one_gpu(number)["CUDA_VISIBLE_DEVICES"] for number in range(2)] == ["0", UUIDS[1]]


def test_a_container_with_one_gpu_calls_it_number_0_whatever_its_file(machine):
    """gVisor's has no word of the driver."""
    machine.files("nvidia3", "nvidiactl")
    assert gpu.shown() == ["0"] and gpu.card("0") == ("", machine.file("nvidia3"))
    assert gpu.one_gpu(0)["CUDA_VISIBLE_DEVICES"] == "0" and machine.file("nvidia3") in gpu.devices()


@pytest.mark.parametrize("told", ["nothing", "before the first use", "unreadable"])
def test_without_a_uuid_the_child_is_shown_the_file_of_its_parents_gpu(machine, monkeypatch, told):
    if told == "before the first use":
        machine.told("0000:18:00.0", UNUSED, 1)
        machine.told("0000:28:00.0", UNUSED, 0)
    if told == "unreadable":
        (machine._driver / "0000:18:00.0" / "information").mkdir(parents=True)
    machine.files("nvidia0", "nvidia1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert gpu.one_gpu(0)["CUDA_VISIBLE_DEVICES"] == "1"
    inside = _environment("gpu", HIDING)
    assert inside["CUDA_VISIBLE_DEVICES"] == "0"
    for name, value in inside.items():  # as in the zygote, which builds the walls
        monkeypatch.setenv(name, value)
    wanted = machine.file("nvidia0" if told == "before the first use" else "nvidia1")
    assert [path for path in gpu.devices() if path[-1].isdigit()] == [wanted]


def test_a_uuid_that_is_told_later_counts_from_then_on(machine):
    machine.told("0000:18:00.0", UNUSED, 0)
    machine.files("nvidia0")
    assert gpu.one_gpu(0)["CUDA_VISIBLE_DEVICES"] == "0"
    path = machine._driver / "0000:18:00.0" / "information"
    path.write_text(path.read_text().replace(UNUSED, UUIDS[2]))
    assert gpu.one_gpu(0)["CUDA_VISIBLE_DEVICES"] == UUIDS[2]


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (None, ["0", "1"]), ("", []), ("-1", []), ("NoDevFiles", []), ("1, 0", ["1", "0"]), ("1,-1,0", ["1"]),
        ("0,1,", ["0", "1"]), ("GPU-1, GPU-0", ["GPU-1", "GPU-0"]), ("MIG-GPU-1/2/0", ["MIG-GPU-1/2/0"]),
    ],
)  # fmt: skip
def test_what_a_process_is_shown(machine, monkeypatch, said, shown):
    machine.files("nvidia0", "nvidia1")
    if said is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", said)
    assert gpu.shown() == shown
    if not shown:
        assert "CUDA_VISIBLE_DEVICES" not in gpu.one_gpu(0), "what a person hides is not taken"


def test_a_slice_of_a_gpu_goes_by_its_name_and_finds_all_files(machine, monkeypatch):
    machine.told("0000:18:00.0", UUIDS[0], 0)
    machine.files("nvidia0")
    asked = []
    monkeypatch.setattr(gpu.glob, "glob", lambda pattern: asked.append(pattern) or [])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-4c60d78c-506f-5593-938d-a136eaa1fa52")
    assert _environment("gpu", HIDING)["CUDA_VISIBLE_DEVICES"].startswith("MIG-")
    assert "/dev/nvidia*" in asked
