"""A GPU goes by its UUID: behind the walls, where one device file is shown, it has another number than outside."""

import asyncio

import pytest

from core.evaluation import pool
from core.evaluation.gpu import processes
from core.evaluation.settings import JudgeSettings
from core.evaluation.spawn import _environment
from core.evaluation.walls import gpu
from core.evaluation.walls.namespaces import Walls

FIRST, SECOND, THIRD = (f"GPU-{number}86a8de3-d1a4-7f52-bb3d-100d5c5aab3f" for number in (2, 5, 9))
INFORMATION = """Model: \t\t NVIDIA H200
IRQ:   \t\t 77
GPU UUID: \t {uuid}
Bus Location: \t {bus}
Device Minor: \t {minor}
GPU Excluded:\t No
"""
HIDING, OPEN = Walls(level="namespaces"), Walls(level="basic")


@pytest.fixture
def two(tmp_path, monkeypatch):
    """A machine with two GPUs, whose files are numbered the other way round, and a third without a file."""
    for bus, uuid, minor in (("0000:18:00.0", FIRST, 3), ("0000:2a:00.0", SECOND, 0), ("0000:5d:00.0", THIRD, 7)):
        folder = tmp_path / "gpus" / bus
        folder.mkdir(parents=True)
        (folder / "information").write_text(INFORMATION.format(uuid=uuid, bus=bus, minor=minor))
    files = tmp_path / "dev"
    files.mkdir()
    for name in ("nvidia0", "nvidia3", "nvidiactl"):
        (files / name).touch()
    found = gpu.cards(str(tmp_path / "gpus"), str(files))
    monkeypatch.setattr(gpu, "cards", lambda: found)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return found


def test_gpus_are_in_the_order_of_their_addresses_with_their_own_files(two):
    assert [(card.uuid, card.file[-7:]) for card in two] == [(FIRST, "nvidia3"), (SECOND, "nvidia0")]


@pytest.mark.parametrize(
    ("name", "uuid"),
    [("0", FIRST), ("1", SECOND), ("2", None), (SECOND, SECOND), ("GPU-5", SECOND), ("GPU-", None), ("MIG-5", None),
     ("", None)],
)  # fmt: skip
def test_a_name_stands_for_one_gpu_or_none(two, name, uuid):
    found = gpu.card(name)
    assert (found and found.uuid) == uuid


@pytest.mark.parametrize(("shown", "uuid"), [("1", SECOND), ("0,1", FIRST), (f"{SECOND},0", SECOND)])
def test_who_is_shown_a_gpu_finds_it_behind_the_walls_too(two, monkeypatch, shown, uuid):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    for walls in (HIDING, OPEN):
        assert _environment("gpu", walls)["CUDA_VISIBLE_DEVICES"] == uuid
    files = [path for path in gpu.devices() if path[-1].isdigit()]
    assert files == [card.file for card in two if card.uuid == uuid]


def test_workers_take_the_gpus_in_turn(two, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    assert [gpu.one_gpu(number)["CUDA_VISIBLE_DEVICES"] for number in range(3)] == [SECOND, FIRST, SECOND]


@pytest.mark.parametrize(("walls", "name"), [(HIDING, "0"), (Walls(level="basic", landlock_abi=4), "0"), (OPEN, "1")])
def test_a_driver_that_tells_nothing_leaves_the_number_that_the_child_will_see(monkeypatch, walls, name):
    monkeypatch.setattr(gpu, "cards", lambda: ())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert gpu.one_gpu(0)["CUDA_VISIBLE_DEVICES"] == "1"
    assert _environment("gpu", walls)["CUDA_VISIBLE_DEVICES"] == name


def test_other_processes_of_a_judge_see_no_gpu(two, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert _environment("interpret", HIDING)["CUDA_VISIBLE_DEVICES"] == ""


def test_one_worker_of_each_gpu_proves_it_and_only_at_its_first_start(two, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    asked = []

    class Ended(Exception):
        pass

    def start(command, **_):
        asked.append(command[-1])
        raise Ended

    monkeypatch.setattr(pool.subprocess, "Popen", start)
    made = pool.JudgePool(JudgeSettings(device_class="gpu", speed="measured"), workers=5)
    made._workers[1]._proves = False  # as after its hello

    async def all_start():
        for one in made._workers:
            with pytest.raises(Ended):
                await one.start()

    asyncio.run(all_start())
    assert asked == ["1", "0", "0", "0", "0"]


def test_all_processes_call_a_gpu_the_same(two, monkeypatch):
    monkeypatch.setattr(processes, "_nvml", lambda: None)
    names = set()
    for shown in ("1", SECOND, "GPU-5"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
        names.add(processes.identity("cuda:0"))
    assert names == {SECOND}
