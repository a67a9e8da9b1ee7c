"""`make setup` with a Python that won't do says so in one line, before it makes or downloads anything."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
OLD = "#!/bin/sh\ncase \"$1\" in --version) echo 'Python 3.9.1' >&2;; *) exit 1;; esac\n"


@pytest.fixture
def checkout(tmp_path):
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def refused(checkout, python, *said):
    before = sorted(checkout.rglob("*"))
    # `make test` may be what runs this: a make below it would say so.
    clean = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    command = ["make", "--silent", "setup", f"PYTHON={python}"]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, timeout=60, env=clean)
    lines = [line for line in done.stderr.splitlines() if not line.startswith("make: ***")]
    assert done.returncode == 2 and done.stdout == "" and len(lines) == 1, done.stderr
    for part in ("needs Python 3.11 or newer", *said):
        assert part in lines[0]
    assert sorted(checkout.rglob("*")) == before


def old_python(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(OLD)
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("python", ["/nowhere/python3", "python9.9", "", "/bin/false", "/"])
def test_what_is_no_python(checkout, python):
    refused(checkout, python, f"'{python}' is no Python that runs", "make PYTHON=")


def test_an_old_python(checkout):
    python = old_python(checkout / "old" / "python")
    refused(checkout, python, f"'{python}' is Python 3.9.1", "make PYTHON=")


def test_an_environment_made_with_an_old_python(checkout):
    old_python(checkout / ".venv" / "bin" / "python")
    refused(checkout, sys.executable, "'.venv/bin/python' is Python 3.9.1", "make clean")


def test_an_environment_that_was_half_made(checkout):
    (checkout / ".venv" / "bin").mkdir(parents=True)
    refused(checkout, sys.executable, "'.venv/bin/python' is no Python that runs", "make clean")
