"""A package that can't be imported, or is another one than is wanted, is named with its place and what to do."""

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from runners import packages

ROOT = Path(__file__).parents[3]
STARTER = ROOT / "core" / "tasks" / "starter" / "level1"
JUDGE = ["judge", "--task", str(STARTER / "relu.py"), "--candidate", str(STARTER / "relu_triton.py")]
BROKEN = {
    "import": ("numpy", "raise ImportError('libsomething.so: cannot open')", "libsomething.so"),
    "attribute": ("numpy", "print.nothing", "has no attribute 'nothing'"),
    "empty": ("numpy", "", "of no stated version"),
    "old": ("numpy", "__version__ = '1.26.4'", "1.26.4"),
    "library": ("torch", "raise OSError('libcudart.so: cannot open')", "libcudart.so"),
    "inner": ("torch", "import no_such_part", "No module named 'no_such_part'"),
    "syntax": ("torch", "def (", "SyntaxError"),
}


@pytest.fixture
def kernelmill(tmp_path):
    def run(*words):
        path = os.pathsep.join([str(tmp_path), str(ROOT)])
        return subprocess.run(
            [sys.executable, "-m", "runners.cli", *words],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=120,
        )

    return run


def break_one(folder, kind):
    name, text, said = BROKEN[kind]
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text(text)
    return name, f"{folder}/{name}", said


@pytest.mark.parametrize("kind", BROKEN)
def test_commands_name_the_broken_package_in_one_line(tmp_path, kernelmill, kind):
    name, place, said = break_one(tmp_path, kind)
    recipe = str(ROOT / "configs" / "demo.toml")
    model = f"model.path={ROOT}/configs/policies/demo"
    for words in (JUDGE, ["up", recipe, "--dry-run", model], ["demo", model, "--folder", str(tmp_path / "runs")]):
        done = kernelmill(*words)
        assert done.returncode == 2 and done.stdout == "", done
        (line,) = done.stderr.splitlines()
        assert line.startswith(f"kernelmill {words[0]}: {name} can't be used") and said in line
        assert place in line and f"wanted {packages.range_of(name)}" in line
        assert f"take {tmp_path} off PYTHONPATH" in line
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("kind", ["import", "old", "library"])
def test_the_doctor_fails_what_is_broken_once_and_by_its_place(tmp_path, kernelmill, kind):
    name, place, said = break_one(tmp_path, kind)
    done = kernelmill("doctor", "--config", str(ROOT / "configs" / "demo.toml"))
    assert done.returncode == 1, done
    lines = done.stdout.splitlines()
    (failed,) = [line for line in lines if line.startswith("FAIL") and "recipe" not in line]  # its model is elsewhere
    assert failed.split()[1] == name and place in failed and said in failed
    assert f"take {tmp_path} off PYTHONPATH" in lines[lines.index(failed) + 1]
    assert any(line.startswith("-    gpus ") and "not looked at" in line for line in lines)


def test_a_bug_of_ours_still_shows_its_trace():
    for broken in (lambda: [].nothing, lambda: packages.nothing, lambda: sys.nothing, lambda: __import__("json.gone")):
        with pytest.raises((AttributeError, ImportError)) as caught:
            broken()
        assert packages.explained(caught.value) is None


def test_what_a_supported_package_lacks_while_we_run_is_a_bug_of_ours():
    import numpy

    with pytest.raises(AttributeError) as caught:
        numpy.no_such_function  # noqa: B018
    assert packages.explained(caught.value) is None


def test_a_package_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr(packages, "_distributions", frozenset)
    monkeypatch.delitem(sys.modules, "wandb", raising=False)  # another test may have imported it
    with pytest.raises(ImportError) as caught:
        raise ModuleNotFoundError("No module named 'wandb'", name="wandb")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    found = packages.explained(caught.value)
    assert found and found.name == "wandb" and "wandb is not installed" in found.line and "wandb>=" in found.line


def test_another_version_may_do_and_is_told(tmp_path, kernelmill):
    site = [str(Path(importlib.util.find_spec("numpy").origin).parents[1])]
    (tmp_path / "numpy").mkdir()
    (tmp_path / "numpy" / "__init__.py").write_text(
        f"import importlib.machinery\nfound = importlib.machinery.PathFinder.find_spec('numpy', {site!r})\n"
        "__path__ = list(found.submodule_search_locations)\n"
        "exec(compile(open(found.origin).read(), found.origin, 'exec'))\n__version__ = '9.1'\n"
    )
    done = kernelmill("up", str(ROOT / "configs/demo.toml"), "--dry-run", f"model.path={ROOT}/configs/policies/demo")
    assert done.returncode == 0 and '"steps"' in done.stdout, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"note: numpy 9.1 from {tmp_path}/numpy, wanted >=")


@pytest.fixture
def without_checkout(tmp_path, monkeypatch):
    monkeypatch.setattr(packages, "_ROOT", tmp_path)
    packages.wanted.cache_clear()
    yield tmp_path
    monkeypatch.undo()
    packages.wanted.cache_clear()


def test_wanted_versions_are_the_checkouts(without_checkout):
    (without_checkout / "pyproject.toml").write_text(
        '[project]\nname = "kernelmill"\ndependencies = ["numpy>=7,<8", "other>1; python_version < \'3\'"]\n'
    )
    assert set(packages.wanted()) == {"numpy"} and packages.range_of("numpy") == ">=7,<8"


@pytest.mark.parametrize("neighbour", [None, '[project]\nname = "other"\ndependencies = ["numpy>=7"]\n', "no TOML"])
def test_without_a_checkout_they_are_the_installed_distributions(without_checkout, monkeypatch, neighbour):
    if neighbour is not None:
        (without_checkout / "pyproject.toml").write_text(neighbour)
    asked = ["numpy<2.4,>=2.0", 'pytest>=8; extra == "dev"']
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: asked)
    assert set(packages.wanted()) == {"numpy"} and packages.range_of("numpy") == ">=2.0,<2.4"


def test_without_either_any_version_will_do(without_checkout, monkeypatch):
    def absent(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", absent)
    assert packages.wanted() == {} and packages.found("numpy").fits
