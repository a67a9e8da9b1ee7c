"""Baselines on disk: what is read back, what is not believed, and many processes at once."""

import multiprocessing
from pathlib import Path

import pytest

from core.evaluation.gpu import baseline as gpu_baseline
from core.evaluation.gpu import baselines
from core.evaluation.gpu.baselines import Baseline, BaselineCache

KEY = {"source": "class Model: ...", "shapes": [[1, 2], [3]], "gpu": "NVIDIA H200", "precision": {"tf32": "False"}}
FOUND = Baseline(median_ms=1.5, eager_ms=3.0, calls=100, clock="events")


def test_what_was_put_is_got_by_another_cache(tmp_path):
    BaselineCache(str(tmp_path / "new" / "folder")).put(KEY, FOUND)
    again = BaselineCache(str(tmp_path / "new" / "folder")).get(dict(reversed(KEY.items())))
    assert again == FOUND
    assert again.gain == 2.0


@pytest.mark.parametrize("name", KEY)
def test_every_part_of_the_key_counts(tmp_path, name):
    cache = BaselineCache(str(tmp_path))
    cache.put(KEY, FOUND)
    assert cache.get({**KEY, name: "another"}) is None


def test_trouble_is_remembered_and_has_no_gain(tmp_path):
    cache = BaselineCache(str(tmp_path))
    cache.put(KEY, Baseline(median_ms=0.0, eager_ms=3.0, calls=0, clock="", trouble="does not compile"))
    assert cache.get(KEY).trouble == "does not compile"
    assert cache.get(KEY).gain == 0.0


def _spoiled(path, how):
    text = path.read_text()
    path.write_text(
        {
            "empty": "",
            "half": text[: len(text) // 2],
            "other": "[1, 2]",
            "more": text.replace('"calls"', '"more": 1,\n"calls"'),
            "negative": text.replace("1.5", "-1.5"),
            "foreign": text.replace("H200", "H100"),
        }[how]
    )


@pytest.mark.parametrize("how", ["empty", "half", "other", "more", "negative", "foreign"])
def test_an_entry_that_is_not_what_was_written_is_absent_with_one_line(tmp_path, caplog, how):
    cache = BaselineCache(str(tmp_path))
    cache.put(KEY, FOUND)
    _spoiled(cache.path(KEY), how)
    assert cache.get(KEY) is None
    assert cache.get(KEY) is None
    assert len(caplog.records) == 1
    assert str(cache.path(KEY)) in caplog.text
    cache.put(KEY, FOUND)
    assert cache.get(KEY) == FOUND


def test_a_folder_that_cannot_be_made_costs_the_memory_alone(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    cache = BaselineCache(str(tmp_path / "file" / "folder"))
    cache.put(KEY, FOUND)
    assert cache.get(KEY) is None
    assert "is not written" in caplog.text


def test_the_folder_is_the_variable_or_below_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.setenv(baselines.FOLDER_VARIABLE, str(tmp_path / "chosen"))
    assert BaselineCache().folder == tmp_path / "chosen"
    monkeypatch.delenv(baselines.FOLDER_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert BaselineCache().folder == tmp_path / "cache" / "kernelmill" / "baselines"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert BaselineCache().folder == Path.home() / ".cache" / "kernelmill" / "baselines"


def _write(folder, number):
    cache = BaselineCache(folder)
    for turn in range(200):
        cache.put(KEY, Baseline(median_ms=1.0 + number, eager_ms=2.0, calls=turn, clock="events" * 500))


def test_readers_see_whole_entries_while_several_processes_write(tmp_path, caplog):
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write, args=(str(tmp_path), number)) for number in range(3)]
    for writer in writers:
        writer.start()
    cache, seen = BaselineCache(str(tmp_path)), 0
    while any(writer.is_alive() for writer in writers):
        seen += cache.get(KEY) is not None
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert cache.get(KEY) is not None
    assert not caplog.records
    assert [path.name for path in tmp_path.iterdir()] == [cache.path(KEY).name]


@pytest.mark.parametrize(
    ("trouble", "kept"),
    [
        ("", True),
        ("call: {'type': 'BackendCompilerFailed', 'message': 'no such operator'}", True),
        ("call: timed out", True),
        ("call: ended with -9", False),
        (f"{baselines.NOISY}: somebody else's kernels ran on cuda:0 all the time", False),
        ("call: {'type': 'OutOfMemoryError', 'message': 'CUDA out of memory. Tried to allocate 2.00 GiB.'}", False),
    ],
)
def test_only_what_is_true_of_the_task_is_remembered(trouble, kept):
    times = {"median_ms": 0.0, "eager_ms": 1.0} if trouble else {"median_ms": 1.0, "eager_ms": 1.0}
    found = Baseline(**times, calls=0, clock="", trouble=trouble)
    assert gpu_baseline.lasting(found) is kept
