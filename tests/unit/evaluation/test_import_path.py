"""Confined processes import what the judge imports: its folders of packages are theirs, read-only, and nothing else."""

import asyncio
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from core.evaluation import import_path
from core.evaluation.pool import JudgeError, JudgePool
from core.evaluation.proof import RIGHT, TASK, WRONG
from core.evaluation.settings import JudgeSettings

ANOTHER_TRITON = """
import importlib.machinery
found = importlib.machinery.PathFinder.find_spec("triton", {site!r})
__path__ = list(found.submodule_search_locations)
exec(compile(open(found.origin).read(), found.origin, "exec"))
__version__ = "0.0.1"
"""
"""The installed Triton under another version, from another folder."""
LOOKS = """
import os
import sys
import onlyhere
import triton
assert triton.__version__ == "0.0.1" and onlyhere.__file__.startswith(FOLDER)
assert not any(path in sys.path for path in ("", os.getcwd(), FOLDER + "/project"))
for path in (onlyhere.__file__, FOLDER + "/site-packages/new.py"):
    try:
        open(path, "a")
    except OSError:
        continue
    raise AssertionError("written to " + path)
"""


def folders(tmp_path: Path) -> dict[str, Path]:
    """One of each kind that may stand on a path."""
    made = {name: tmp_path / name for name in ("site-packages", "target", "project", "everybodys", "cwd")}
    for path in made.values():
        path.mkdir()
        (path / "onlyhere.py").write_text("")
    for name in ("target", "everybodys", "cwd"):
        (made[name] / "thing-1.0.dist-info").mkdir()
    made["everybodys"].chmod(0o777)
    made["archive"] = tmp_path / "archive.zip"
    zipfile.ZipFile(made["archive"], "w").close()
    return made


def test_of_the_judges_path_only_folders_of_packages_are_handed_on(tmp_path, monkeypatch) -> None:
    made = folders(tmp_path)
    monkeypatch.chdir(made["cwd"])
    monkeypatch.setattr(
        sys, "path", ["", *map(str, made.values()), str(tmp_path / "gone" / "site-packages"), *sys.path]
    )
    handed = import_path.handed_on()
    assert [path for path in handed if path.startswith(str(tmp_path))] == [
        str(made["site-packages"]), str(made["target"])
    ]  # fmt: skip
    (tmp_path / "open").mkdir()
    made["site-packages"].rename(tmp_path / "open" / "site-packages")
    sys.path.insert(0, str(tmp_path / "open" / "site-packages"))
    assert sys.path[0] in import_path.handed_on()
    (tmp_path / "open").chmod(0o777)
    assert sys.path[0] not in import_path.handed_on(), "anybody could put another folder in its place"
    (tmp_path / "open").chmod(0o1777)
    assert sys.path[0] in import_path.handed_on()


def test_an_isolated_interpreter_imports_in_the_judges_order(tmp_path, monkeypatch) -> None:
    made = folders(tmp_path)
    first, last = made["site-packages"], made["target"]
    monkeypatch.setattr(sys, "path", [str(made["project"]), str(first), *sys.path, str(last)])
    words = [*import_path.python("import json; print(json.dumps([sys.path, sys.argv[1:]]))"), "a", "b"]
    path, arguments = json.loads(subprocess.run(words, capture_output=True, text=True, check=True, cwd=tmp_path).stdout)
    standard = os.path.dirname(os.__file__)
    assert path.index(str(first)) < path.index(standard) < path.index(str(last))
    assert arguments == ["a", "b"] and not {"", str(tmp_path), str(made["project"])} & set(path)
    asked = tmp_path / "asked.py"
    asked.write_text("import sys, onlyhere; print(__name__, sys.argv[1:], onlyhere.__file__)")
    done = subprocess.run([*import_path.script(), asked, "a"], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["__main__", "['a']", str(first / "onlyhere.py")]


def test_the_same_version_from_another_folder_is_no_difference() -> None:
    own = import_path.loaded()
    assert set(own) >= {"numpy", "torch"} and import_path.differences(own) == ""
    version, _, _ = own["numpy"].partition(", ")
    assert import_path.differences({"numpy": f"{version}, /elsewhere/numpy/__init__.py"}) == ""
    told = import_path.differences({**own, "numpy": "1.26.4, /elsewhere/numpy/__init__.py"})
    assert f"(numpy: 1.26.4, /elsewhere/numpy/__init__.py there, {own['numpy']} here)" in told
    assert "\n" not in told and "PYTHONPATH" in told and "torch" not in told


def judged(folder: Path, monkeypatch, candidate: str):
    """The verdict of a pool whose workers see another Triton in `folder`."""
    site = [path for path in sys.path if os.path.basename(path) == "site-packages"]
    (folder / "triton").mkdir()
    (folder / "triton" / "__init__.py").write_text(ANOTHER_TRITON.format(site=site))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), str(folder.parent / "project")]))

    async def main():
        pool = JudgePool(JudgeSettings(target="", speed="none"), workers=1)
        try:
            await pool.start()
            return await pool.judge(TASK, candidate, "key")
        finally:
            await pool.stop()

    return asyncio.run(main())


@pytest.mark.slow
def test_candidates_see_the_packages_of_the_judge_and_can_not_write_to_them(tmp_path, monkeypatch) -> None:
    for folder in (tmp_path, *tmp_path.parents):
        if not folder.stat().st_mode & 0o077:
            folder.chmod(0o711)  # pytest closes them, and candidates may have a user of their own
    made = folders(tmp_path)
    verdict = judged(made["site-packages"], monkeypatch, LOOKS.replace("FOLDER", repr(str(tmp_path))) + RIGHT)
    assert verdict.kind == "pass", verdict


@pytest.mark.slow
def test_a_judge_whose_confined_processes_have_another_version_does_not_start(tmp_path, monkeypatch) -> None:
    made = folders(tmp_path)
    with pytest.raises(
        JudgeError, match=r"^confined processes have other packages .*triton: .* there, 0\.0\.1, .*here"
    ):
        judged(made["project"], monkeypatch, WRONG)
