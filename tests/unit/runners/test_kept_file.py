"""`audit --keep FILE` where FILE is no place for audits: one line, exit code 2, nothing audited, the file as it was."""

import os

import pytest

from tests.unit.runners.typed import kernelmill, refused


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("folder", "a folder, wanted a file"),
        ("letter.txt", "letter.txt:1: no kept audit, got 'Dear"),
        ("letter.txt/kept.jsonl", "Not a directory"),
        ("/proc/1/kept.jsonl", "nothing can be written in /proc/1"),
        ("/proc/no/kept.jsonl", "nothing can be written in /proc"),
        ("fifo", "a FIFO, wanted a file"),
    ],
)
def test_a_bad_file(tmp_path, name, said):
    (tmp_path / "folder").mkdir()
    letter = tmp_path / "letter.txt"
    letter.write_text("Dear auditor")
    os.mkfifo(tmp_path / "fifo")
    refused(kernelmill("audit", "composed:1", "--keep", tmp_path / name), str(tmp_path / name), said)
    assert letter.read_text() == "Dear auditor"


def test_a_file_that_may_not_be_written(tmp_path):
    kept = tmp_path / "kept.jsonl"
    kept.touch(0o400)
    if os.access(kept, os.W_OK):
        pytest.skip("this user may write everything")
    refused(kernelmill("audit", "composed:1", "--keep", kept), str(kept), "can't be read and written")


def test_a_folder_that_is_not_there_is_made(tmp_path):
    kept = tmp_path / "new" / "kept.jsonl"
    done = kernelmill("audit", "composed:1", "--keep", kept)
    assert done.returncode == 0, done.stderr
    assert len(kept.read_text().splitlines()) == 1
