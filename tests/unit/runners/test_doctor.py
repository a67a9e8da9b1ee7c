"""What the doctor says about the engine of a recipe."""

import importlib.util
import sys

import pytest

from configs.load import load
from core.evaluation import import_path
from runners import doctor, packages
from runners.cli import main
from tests.unit.runners.typed import ROOT

without_vllm = pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vllm is installed here")


def recipe(folder, engine):
    path = folder / "recipe.toml"
    text = f'[model]\npath = "configs/policies/demo"\n[rollout]\nengine = "{engine}"\nmax_new_tokens = 320\n'
    path.write_text(text)
    return str(path)


@without_vllm
def test_a_recipe_for_vllm_fails_without_it_and_is_told_which_extra_to_install(tmp_path):
    found, *others = doctor.recipe(recipe(tmp_path, "vllm"))
    assert found.ok is False and "rollout.engine = 'vllm'" in found.found
    assert "make extra-vllm" in found.advice
    # Said once: the recipe's other findings come as well.
    assert [other.what for other in others] == ["model", "tasks", "recipe"]


@without_vllm
def test_another_recipe_does_not_need_it(tmp_path):
    found, *_ = doctor.recipe(recipe(tmp_path, "transformers"))
    assert found.ok is None


def test_a_vllm_that_is_too_old_is_not_good_enough(tmp_path, monkeypatch):
    package = tmp_path / "vllm-0.3.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.3.0\n")
    (tmp_path / "vllm.py").write_text("__version__ = '0.3.0'\n")
    monkeypatch.delitem(__import__("sys").modules, "vllm", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    path = recipe(tmp_path, "vllm")
    (found,) = doctor.engine(load(path), path)
    assert found.ok is False and "0.3.0" in found.found and ">= 0.25" in found.found


def test_checks_that_break_are_findings_with_a_name():
    def engine_room():
        raise RuntimeError("smoke")
        yield

    (broken,) = doctor._guarded(engine_room)
    assert (broken.ok, broken.what, broken.found) == (False, "engine room", "RuntimeError: smoke")


@pytest.mark.parametrize("text", [None, "x", "[rollout]\nno_such_key = 1\n", "[rollout]\ntop_p = 3\n"])
def test_what_is_wrong_with_a_recipe_is_told_once(tmp_path, monkeypatch, capsys, text):
    path = tmp_path / "mine.toml"
    if text is not None:
        path.write_text(text)
    for name in ("gpu_judge", "judge_packages", "packages", "sandbox"):
        monkeypatch.setattr(doctor, name, lambda: iter(()))
    assert main(["doctor", "--config", str(path)]) == 1
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("FAIL")]
    assert len(told) == 1 and told[0].startswith("FAIL recipe ") and str(path) in told[0] and "Error" not in told[0]


def test_all_that_is_wrong_with_a_recipe_is_told_at_once(tmp_path, monkeypatch, capsys):
    path = tmp_path / "mine.toml"
    path.write_text(
        f'extends = "{ROOT}/configs/demo.toml"\n[model]\npath = "./nowhere"\n[learner]\nlora_rank = 4\n'
        '[tasks]\ntrain = [{kind = "starter", levels = [9]}]\n'
    )
    for name in ("gpu_judge", "judge_packages", "packages", "sandbox"):
        monkeypatch.setattr(doctor, name, lambda: iter(()))
    monkeypatch.setitem(sys.modules, "peft", None)
    assert main(["doctor", "--config", str(path)]) == 1
    told = [line.split()[1] for line in capsys.readouterr().out.splitlines() if line.startswith("FAIL")]
    assert told == ["model", "tasks", "learner"]


def test_versions_outside_of_what_the_project_asks_for_are_failures(monkeypatch):
    import numpy

    versions = {"numpy": "2.4.1", "aiohttp": "3.1.0"}
    before = {found.what for found in doctor.packages() if found.ok is False}
    monkeypatch.setattr(numpy, "__version__", versions["numpy"])
    asked = doctor.metadata.version
    monkeypatch.setattr(doctor.metadata, "version", lambda name: versions.get(name) or asked(name))
    failed = {found.what: found for found in doctor.packages() if found.ok is False}
    assert set(failed) == before | set(versions)
    for name in versions:
        found = failed[name]
        assert versions[name] in found.found and "wanted >=" in found.found and packages.range_of(name) in found.advice


def test_other_packages_of_the_judges_processes_are_a_failure(monkeypatch):
    assert not list(doctor.judge_packages())
    there = import_path.loaded()
    monkeypatch.setattr(import_path, "asked", lambda: {**there, "numpy": "1.26.4, /elsewhere/numpy/__init__.py"})
    (found,) = doctor.judge_packages()
    assert found.ok is False and "numpy: 1.26.4, /elsewhere/numpy/__init__.py there" in found.found
    assert found.found.count("(") == found.found.count(")") and "PYTHONPATH" in found.advice


def test_packages_that_the_judges_processes_lack_are_a_failure(monkeypatch):
    monkeypatch.setattr(import_path, "python", lambda code: [doctor.sys.executable, "-c", "import no_such_package"])
    (found,) = doctor.judge_packages()
    assert found.ok is False and "No module named 'no_such_package'" in found.found and "PYTHONPATH" in found.advice
