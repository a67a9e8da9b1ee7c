"""`up RUN/config.json` goes on with the run whose folder holds the file, wherever that is and wherever it is called."""

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from actors.checkpointer import Checkpointer
from bus import facts
from bus.memory import MemoryBroker
from bus.memory_server import MemoryServer
from bus.run_bus import RunBus
from bus.topology import topology
from configs.load import load
from core.checkpoints import store
from core.clock import SystemClock
from core.run_folder import RunFolder
from runners import local, supervise
from runners.cli import main

RECIPE = Path(__file__).parents[3] / "configs" / "demo.toml"


@pytest.fixture
def ups(tmp_path, monkeypatch):
    """Calls `up` in a folder, with a real broker and no actors; answers with the run's folder."""
    taken = []

    class NoActors(local.LocalRun):
        def _actors(self):
            return []

        async def wait(self):
            taken.append(self.folder.root.resolve())

    monkeypatch.setattr(supervise, "LocalRun", NoActors)

    def up(where, *words):
        (tmp_path / where).mkdir(parents=True, exist_ok=True)
        monkeypatch.chdir(tmp_path / where)
        assert main(["up", *map(str, words)]) == 0
        return taken.pop()

    return up


def refused(capsys, *words):
    """What is said; nothing is begun, and a dry run says the same."""
    capsys.readouterr()
    said = set()
    for more in ([], ["--dry-run"]):
        assert main(["up", *map(str, words), *more]) == 2
        said.add(capsys.readouterr().err)
    (line,) = said
    assert line.count("\n") == 1 and "moved" not in line
    return line


def test_a_run_with_a_relative_folder_goes_on_from_wherever_up_is_called(tmp_path, ups):
    run = tmp_path / "a" / "runs" / "own"
    assert ups("a", RECIPE, "run.name=own") == run
    assert ups("b", "../a/runs/own/config.json") == run
    assert ups("b", run / "config.json", "run.steps=500", "run.name=own") == run
    assert ups("a/runs/own", "config.json") == run
    assert ups("a", "runs/own/config.json") == run
    assert ups("a", RECIPE, "run.name=own") == run
    assert not list((tmp_path / "b").iterdir()) and not (run / "runs").exists()


def test_another_run_of_that_name_where_up_is_called_is_let_be(tmp_path, ups):
    first, second = ups("a", RECIPE, "run.name=own"), ups("b", RECIPE, "run.name=own")
    before = (second / "config.json").stat()
    assert ups("b", first / "config.json") == first
    assert (second / "config.json").stat() == before


@pytest.mark.parametrize("folder", ["runs", "{tmp}/a/runs"])
def test_a_run_that_was_moved_goes_on_where_it_lies(tmp_path, ups, folder):
    first = ups("a", RECIPE, "run.name=own", f"run.folder={folder.format(tmp=tmp_path)}")
    (tmp_path / "c").mkdir()
    moved = shutil.move(first, tmp_path / "c" / "own")
    assert ups("b", moved / "config.json") == moved
    (tmp_path / "link").symlink_to(tmp_path / "c")
    assert ups("b", "../link/own/config.json") == moved
    assert not first.exists() and not list((tmp_path / "b").iterdir())
    assert json.loads((moved / "config.json").read_text())["run"]["folder"] in (str(moved.parent), f"{tmp_path}/link")


def test_of_a_run_and_its_copy_one_has_to_be_named(tmp_path, ups, capsys):
    first = ups("a", RECIPE, "run.name=own", f"run.folder={tmp_path}/a/runs")
    copy = shutil.copytree(first, tmp_path / "c" / "own")
    said = refused(capsys, copy / "config.json")
    assert f"{copy}/config.json names {first} as its run's folder, and a run stands there as well" in said
    assert f"give {first}/config.json" in said and f"give run.folder={copy.parent} too" in said
    assert ups("b", first / "config.json") == first
    assert ups("b", copy / "config.json", f"run.folder={copy.parent}") == copy
    assert ups("b", copy / "config.json") == copy  # it says so itself now


@pytest.mark.parametrize("folder", ["runs", "{tmp}/a/runs"])
def test_the_config_of_a_renamed_run_begins_no_other_one(tmp_path, ups, capsys, folder):
    first = ups("a", RECIPE, "run.name=own", f"run.folder={folder.format(tmp=tmp_path)}")
    renamed = first.rename(first.with_name("renamed"))
    said = refused(capsys, renamed / "config.json")
    assert f"{renamed} holds the run 'own', so it was renamed or copied: rename the folder back to {first}" in said
    shutil.copytree(renamed, first)
    assert f"{first} stands there as well" in refused(capsys, renamed / "config.json")
    assert ups("b", renamed / "config.json", "run.name=anew", f"run.folder={tmp_path}/b").name == "anew"


def test_an_actor_that_is_started_by_hand_has_the_same_folder_and_names_it_so_that_others_find_it(
    tmp_path, ups, monkeypatch, capsys
):
    run = ups("a", RECIPE, "run.name=own")
    monkeypatch.delenv("NATS_URL", raising=False)
    for where, words in (
        ("b", ["--config", "../a/runs/own/config.json"]),
        ("a", ["--config", "runs/own/config.json"]),
        ("a", ["--config", str(RECIPE), "--run-folder", "runs/own"]),  # as `up` starts it
    ):
        (tmp_path / where).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / where)
        assert main(["run", "recorder", *words]) == 2
        assert f"({run / 'run.json'} is not there)" in capsys.readouterr().err
    assert not list((tmp_path / "b").iterdir())


def test_a_checkpoint_that_was_written_elsewhere_is_committed_where_the_run_lies(tmp_path, monkeypatch):
    """The fact names the folder as the learner saw it then; the original of a copied run is not to be touched."""
    monkeypatch.setattr(store, "verify", lambda path: None)
    monkeypatch.setattr(store, "kept_from", lambda folder: 0)
    config = load(RECIPE, ["run.name=own", f"run.folder={tmp_path}/b"])
    original, here = (RunFolder(tmp_path / place / "own").checkpoints for place in "ab")
    for folder in (original, here):
        (folder / "step-000001.written").mkdir(parents=True)

    async def run():
        broker = MemoryBroker(MemoryServer(SystemClock()), "checkpointer-0")
        await broker.ensure(
            topology("own", device_classes=[("triton", "cpu")], ack_wait_s=30, dead_after_s=7.0, max_worker_deaths=3)
        )
        bus = RunBus(broker, "own", "checkpointer-0")
        await bus.fact(facts.CHECKPOINT_WRITTEN, step=1, folder=str(original / "step-000001.written"))
        one = Checkpointer(config, bus, "checkpointer-0", RunFolder(tmp_path / "b" / "own"), SystemClock())
        life = asyncio.create_task(one.live())
        async with asyncio.timeout(30):
            while not one.gauges()["committed_checkpoints"]:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        one.stopping.set()
        await life

    asyncio.run(run())
    assert [path.name for folder in (original, here) for path in folder.iterdir()] == [
        "step-000001.written",
        "step-000001",
    ]
