"""The folder of a candidate without namespaces: emptied whatever is in it, refused when the disk is full."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from core.evaluation.walls import scratch


def test_everything_is_removed_and_no_link_is_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("x")
    outer = tmp_path / "outer"
    outer.mkdir()
    room = Path(scratch.renew(str(outer), None, 1))
    (room / "link").symlink_to(outside)
    (room / "loop").symlink_to("loop")
    (room / "closed" / "inner").mkdir(parents=True)
    (room / "closed" / "inner" / "link").symlink_to(outside / "kept")
    os.mkfifo(room / "closed" / "fifo")
    (room / "closed" / "inner").chmod(0)
    (room / "closed").chmod(0)
    (room / "odd\udc80\n name").write_text("x")
    assert scratch.renew(str(outer), None, 1) == str(room)
    assert list(room.iterdir()) == []
    assert (outside / "kept").read_text() == "x"


def test_folders_deeper_than_any_path_are_removed(tmp_path: Path) -> None:
    top = tmp_path / "room"
    top.mkdir()
    here = os.open(top, os.O_RDONLY)
    for _ in range(600):
        os.mkdir("d" * 200, dir_fd=here)
        below = os.open("d" * 200, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    assert scratch.overfull(str(top), 64, 4096)
    scratch.remove(str(top))
    assert not top.exists()


def test_a_link_in_place_of_the_folder_is_only_unlinked(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "outer").mkdir()
    (tmp_path / "outer" / "room").symlink_to(outside)
    room = scratch.renew(str(tmp_path / "outer"), None, 1)
    assert not os.path.islink(room) and outside.is_dir()


def test_too_much_is_seen(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "large").write_bytes(os.urandom(3 * 2**20))
    assert scratch.overfull(str(tmp_path), 2, 4096) and not scratch.overfull(str(tmp_path), 4, 4096)
    assert scratch.overfull(str(tmp_path), 4, 1)


@pytest.mark.parametrize("place", ["missing", "a_file"])
def test_no_place_for_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    (tmp_path / "a_file").write_text("x")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / place))
    with pytest.raises(OSError, match="set TMPDIR to a folder that can be written"):
        scratch.make(None)


def test_folders_of_dead_judges_are_removed_and_of_living_ones_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(scratch, "_FRESH_S", -1.0)
    dead, dead_lock = scratch.make(None)
    os.close(dead_lock)
    living, lock = scratch.make(None)
    scratch.remove_stale()
    assert not os.path.exists(dead) and os.path.exists(living)
    os.close(lock)


FULL = """
import os, sys, tempfile
from core.evaluation.walls import jail
from core.evaluation.walls import linux
from core.evaluation.walls import scratch
jail.enter_namespaces(linux.CLONE_NEWNS | (linux.CLONE_NEWUSER if os.geteuid() else 0))
linux.mount("tmpfs", sys.argv[1], "tmpfs", 0, sys.argv[2])
if sys.argv[3] == "read_only":
    linux.mount("", sys.argv[1], flags=linux.MS_REMOUNT | linux.MS_RDONLY)
tempfile.tempdir = sys.argv[1]
try:
    outer, _ = scratch.make(None)
    scratch.renew(outer, None, 64)
except OSError as error:
    print(error.strerror)
"""


@pytest.mark.parametrize(
    ("options", "mode", "said"),
    [
        ("size=1m", "full", "is full: candidates need 64 MB there; free some, or set TMPDIR"),
        ("size=100m,nr_inodes=2", "full", "is full: candidates need 64 MB there"),
        ("size=100m", "read_only", "Read-only file system"),
        ("size=100m", "writable", ""),
    ],
)
def test_a_full_or_read_only_disk_is_named(tmp_path: Path, options: str, mode: str, said: str) -> None:
    command = [sys.executable, "-c", FULL, str(tmp_path), options, mode]
    root = str(Path(__file__).parents[3])
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    if "unshare" in done.stderr:
        pytest.skip("this machine refuses namespaces, and so a disk of its own")
    assert done.returncode == 0, done.stderr
    assert said in done.stdout and bool(said) == bool(done.stdout)
