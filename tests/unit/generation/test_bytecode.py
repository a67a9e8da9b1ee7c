"""Packages without bytecode get it, once."""

import importlib.util

from tests.gpu.bytecode import compile_missing


def test_a_package_without_bytecode_and_its_neighbours_get_it(tmp_path, monkeypatch):
    for name in ("bare_one", "bare_two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("VALUE = 1\n")
    (tmp_path / "bare_two" / "broken.py").write_text("this is no Python\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("PYTHONPYCACHEPREFIX", raising=False)
    assert compile_missing("bare_one") > 0
    for name in ("bare_one", "bare_two"):
        assert (tmp_path / name / "__pycache__").is_dir()
        assert importlib.util.find_spec(name) is not None
    assert compile_missing("bare_one") == 0.0
    assert compile_missing("no_such_package_here") == 0.0
