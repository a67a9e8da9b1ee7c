"""Which kernels of a run are the best, and the folder that keeps them."""

import json
from pathlib import Path

import msgspec
import pytest

from bus.messages import Ended
from core.columns import pack
from core.episodes.episode import Episode, Turn
from core.episodes.heldout_figures import HeldOut
from core.evaluation.verdict import Verdict
from core.record import best, best_folder, heldout
from core.record.best_folder import BestFolder, folder_name, locked
from core.record.files import RecordError
from core.record.record import Record


def verdict(speedup: float | None = None, low: float | None = None, kind: str = "pass") -> Verdict:
    return Verdict(
        candidate_key="k", kind=kind, correct=kind == "pass", speedup=speedup, speedup_low=low, feedback="why\nmore"
    )


def turn(number: int, candidate: str | None, judged: Verdict | None, versions: tuple[int, ...] = (0,)) -> Turn:
    return Turn(
        index=number,
        prompt_ids=b"",
        completion_ids=pack("ids", [1] * len(versions)),
        logprobs=pack("logprobs", [0.0] * len(versions)),
        versions=pack("versions", versions),
        candidate=candidate,
        verdict=judged,
        score=1.0,
    )


def write(folder: Path, *episodes: Episode) -> Path:
    with Record(folder) as record:
        record.append_episodes([Ended(run_id="r", episode=one, admission=0, size=8) for one in episodes])
    return folder


def episode(index: int, task_id: str, *turns: Turn) -> Episode:
    return Episode(group_id="g", index=index, task_id=task_id, level=2, turns=turns, end="max_turns")


def test_each_source_that_passed_once_the_surely_fastest_first(tmp_path):
    wide, narrow = verdict(3.0, 1.1), verdict(1.5, 1.4)
    run = write(
        tmp_path,
        episode(0, "b", turn(0, "wide", wide), turn(1, "narrow", narrow, (3, 4))),
        episode(1, "b", turn(0, "narrow", narrow, (9,)), turn(1, "failed", verdict(9.0, 9.0, kind="fail"))),
        episode(2, "b", turn(0, None, verdict()), turn(1, "no verdict", None), turn(2, "ours", verdict(kind="infra"))),
        episode(3, "a", turn(0, "once", verdict()), turn(1, "often", verdict()), turn(2, "often", verdict())),
        episode(4, "c", turn(0, "failed", verdict(kind="fail"))),
    )
    found = best.passed(run)
    assert list(found) == ["a", "b"]
    assert [(one.source, one.times) for one in found["b"]] == [("narrow", 2), ("wide", 1)]
    assert [one.source for one in found["a"]] == ["often", "once"]
    first = found["b"][0]
    assert (first.episode, first.turn, first.version, first.level) == ("g/0", 1, 4, 2)


def test_held_out_kernels_count_too(tmp_path):
    run = write(tmp_path, episode(0, "a", turn(0, "slow", verdict(1.0, 1.0))))
    played = [episode(0, "h", turn(0, "k", verdict(2.0, 2.0))), episode(1, "a", turn(0, "fast", verdict(3.0, 3.0)))]
    heldout.save(HeldOut.of(played, version=7, step=7, sources={}), run / heldout.AFTER)
    (run / heldout.BEFORE).write_text("{")  # cut off: left out, and told by who reads
    found = best.passed(run)
    assert [one.source for one in found["a"]] == ["fast", "slow"]
    assert (found["h"][0].version, found["h"][0].episode) == (7, heldout.AFTER)


def test_a_run_without_episodes_has_none(tmp_path):
    with Record(tmp_path):
        pass
    assert best.passed(tmp_path) == {}


IDS = ("starter/l1_relu", "starter__l1_relu", "starter/l1__relu", "a", "a/b", "../../etc", "/etc", ".", "", "é/1",
       "a b", "a/./b", "-x", "x" * 300, "x" * 299 + "y", "a\nb", "a\0b")  # fmt: skip


def test_every_task_has_a_folder_of_its_own_inside():
    names = [folder_name(task_id) for task_id in IDS]
    assert names[0] == "starter__l1_relu" and len(set(names)) == len(IDS)
    for name in names:
        assert Path(name).name == name and name[0] not in ".-" and len(name) <= 140 and name.isprintable()


def kernel(task_id: str = "s/a", source: str = "x = 1\n") -> best.Kernel:
    return best.Kernel(
        task_id=task_id, level=1, source=source, verdict=verdict(2.0, 2.0), episode="g/0", turn=0, version=1
    )


def opened(root: Path, run: str = "r", **judge: object) -> BestFolder:
    kept = BestFolder(root, run)
    kept.judge_with(judge or {"gpu": "A"})
    return kept


def test_what_is_kept_stands_for_the_next_call(tmp_path):
    root = tmp_path / "best"
    kept = opened(root)
    kept.keep(kernel(source="lone \ud800\n"), "reference\n", verdict(1.5, 1.4), ("k1", "k2"))
    kept.refuse(kernel("s/b"), verdict(kind="fail"), ("k3",))
    kept.refuse(kernel("s/c"), verdict(kind="infra"), ("k4",))
    kept.refuse(kernel("s/d"), verdict(kind="unsupported"), ("k5",))
    again = opened(root)
    assert [row.state for row in again.rows] == ["kept", "failed", "unjudged", "unsupported"]
    assert again.rows[1].why == "fail : why"
    assert (root / "s__a" / "kernel.py").read_text() == "lone ?\n"
    assert (root / "s__a" / "reference.py").read_text() == "reference\n"
    assert json.loads((root / "s__a" / "verdict.json").read_text())["speedup"] == 1.5
    assert (again.row("s/a").speedup, again.row("s/a").speedup_in_run) == (1.5, 2.0)
    assert again.stands("s/a", ("k1", "k2")) and again.stands("s/b", ("k3",)) and again.stands("s/d", ("k5",))
    assert not again.stands("s/c", ("k4",)), "our own trouble is tried again"
    assert again.stands("s/a", ("k1",)), "more were judged"
    assert not again.stands("s/a", ("k1", "k2", "k3"))
    assert not again.stands("s/a", ("k1", "k9")) and not again.stands("s/new", ("k1",))
    for name in ("kernel.py", "reference.py", "verdict.json"):
        (root / "s__a" / name).rename(tmp_path / name)
        assert not again.stands("s/a", ("k1", "k2")), "its files are gone"
        (tmp_path / name).rename(root / "s__a" / name)


def test_another_judge_makes_rows_again_and_each_says_its_own(tmp_path):
    kept = opened(tmp_path / "best", gpu="A")
    for name in ("s/a", "s/b"):
        kept.keep(kernel(name), "", verdict(1.5, 1.4), ("k",))
    other = opened(tmp_path / "best", gpu="B")
    assert not other.stands("s/a", ("k",))
    other.keep(kernel("s/a"), "", verdict(1.2, 1.1), ("k",))
    index = json.loads((tmp_path / "best" / "best.json").read_text())
    assert [index["judges"][row["judge"]] for row in index["rows"]] == [{"gpu": "B"}, {"gpu": "A"}]
    other.keep(kernel("s/b"), "", verdict(1.2, 1.1), ("k",))
    assert list(json.loads((tmp_path / "best" / "best.json").read_text())["judges"].values()) == [{"gpu": "B"}]


def test_what_does_not_pass_any_more_is_not_kept(tmp_path):
    kept = opened(tmp_path / "best")
    kept.keep(kernel(), "", verdict(), ("k",))
    kept.refuse(kernel(), verdict(kind="fail"), ("k2",))
    assert sorted(path.name for path in (tmp_path / "best").iterdir()) == ["best.json"]


def test_a_call_that_was_ended_leaves_what_the_next_one_takes(tmp_path, monkeypatch):
    """Between any two writes: what is there is whole, or is made again."""
    calls = []

    class EndedError(Exception):
        pass

    def ends(number, path):
        calls.append(path)
        if len(calls) == number:
            raise EndedError

    for number in (1, 2, 3, 4, 5):
        root = tmp_path / str(number)
        opened(root).keep(kernel(), "", verdict(1.0, 1.0), ("old",))
        calls.clear()
        with monkeypatch.context() as patched:
            for owner, name in ((Path, "rename"), (Path, "write_bytes"), (best_folder.files, "replace")):
                whole = getattr(owner, name)
                patched.setattr(owner, name, lambda *a, n=number, whole=whole: (ends(n, a[0]), whole(*a))[1])
            with pytest.raises(EndedError):
                opened(root).keep(kernel(source="new"), "", verdict(3.0, 3.0), ("new",))
        again = opened(root)
        if again.stands("s/a", ("old",)):
            assert (root / "s__a" / "kernel.py").read_text() in ("x = 1\n", "new")
        again.keep(kernel(source="new"), "", verdict(3.0, 3.0), ("new",))
        assert opened(root).stands("s/a", ("new",))
        assert sorted(path.name for path in root.iterdir()) == ["best.json", "s__a"]


@pytest.mark.parametrize("broken", ["{", '{"run": 1}', "\udcff", "[]"])
def test_an_index_that_can_not_be_read_is_one_line(tmp_path, broken):
    (tmp_path / "best.json").write_bytes(broken.encode("utf-8", "surrogateescape"))
    with pytest.raises(RecordError, match="can't be read") as error:
        BestFolder(tmp_path, "r")
    assert "\n" not in str(error.value) and "--out" in str(error.value)


def test_what_is_not_ours_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(RecordError, match=r"holds no best.json: choose a new folder by --out"):
        BestFolder(tmp_path, "r")
    (tmp_path / "file").touch()
    with pytest.raises(RecordError, match=r"--out"):
        BestFolder(tmp_path / "file", "r")
    opened(tmp_path / "best", run="other").keep(kernel(), "", verdict(), ("k",))
    with pytest.raises(RecordError, match="kernels of the run 'other', not of 'r'"):
        BestFolder(tmp_path / "best", "r")
    assert msgspec.json.decode((tmp_path / "best" / "best.json").read_bytes())["run"] == "other"


def test_one_call_writes_at_a_time(tmp_path):
    """Each would write its rows over the other's."""
    root = tmp_path / "best"
    with locked(root):
        with pytest.raises(RecordError, match="another `kernelmill best` writes in"), locked(root):
            pass
        opened(root).keep(kernel(), "", verdict(), ("k",))
    with locked(root):
        assert [row.task_id for row in BestFolder(root, "r").rows] == ["s/a"]
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    with pytest.raises(RecordError, match="link to nothing"), locked(tmp_path / "dangling"):
        pass
