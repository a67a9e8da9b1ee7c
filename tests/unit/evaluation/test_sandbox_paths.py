"""Python may be installed anywhere, also below /tmp: what a candidate imports is not covered by what it writes."""

import pytest

from core.evaluation.walls import jail


@pytest.mark.parametrize(
    ("readable", "scratch"),
    [
        (["/usr", "/opt/venv"], "/tmp"),
        (["/usr", "/tmp/clone/.venv"], "/scratch"),
        (["/tmp"], "/scratch"),
        (["/usr", "/tmpfiles/venv"], "/tmp"),
    ],
)
def test_scratch_never_covers_an_installation(readable, scratch):
    assert jail.scratch_folder(readable) == scratch


def test_this_installation_stays_visible():
    readable = jail.readable_paths()
    folder = jail.scratch_folder(readable)
    assert not any(path == folder or path.startswith(folder + "/") for path in readable)
