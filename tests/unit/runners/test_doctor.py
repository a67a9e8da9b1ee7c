"""What the doctor says about the engine of a recipe."""

import importlib.util

import pytest

from runners import doctor

without_vllm = pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vllm is installed here")


def recipe(folder, engine):
    path = folder / "recipe.toml"
    text = f'[model]\npath = "configs/policies/demo"\n[rollout]\nengine = "{engine}"\nmax_new_tokens = 320\n'
    path.write_text(text)
    return str(path)


@without_vllm
def test_a_recipe_for_vllm_fails_without_it_and_is_told_which_extra_to_install(tmp_path):
    (found,) = doctor.engine(recipe(tmp_path, "vllm"))
    assert found.ok is False and "rollout.engine = 'vllm'" in found.found
    assert "make extra-vllm" in found.advice
    # Said once: the recipe's other findings come as well.
    assert [other.what for other in doctor.recipe(recipe(tmp_path, "vllm"))] == ["model", "tasks", "recipe"]


@without_vllm
def test_another_recipe_does_not_need_it(tmp_path):
    (found,) = doctor.engine(recipe(tmp_path, "transformers"))
    assert found.ok is None


def test_a_vllm_that_is_too_old_is_not_good_enough(tmp_path, monkeypatch):
    package = tmp_path / "vllm-0.3.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.3.0\n")
    (tmp_path / "vllm.py").write_text("__version__ = '0.3.0'\n")
    monkeypatch.delitem(__import__("sys").modules, "vllm", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    (found,) = doctor.engine(recipe(tmp_path, "vllm"))
    assert found.ok is False and "0.3.0" in found.found and ">= 0.25" in found.found


def test_checks_that_break_are_findings_with_a_name(tmp_path):
    (broken,) = doctor._guarded(doctor.partial(doctor.engine, str(tmp_path / "gone.toml")))
    assert (broken.ok, broken.what) == (False, "engine")
