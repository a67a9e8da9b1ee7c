"""The house's rule: arrows run down only, NATS stays in the bus, and the light rooms stay light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAY_IMPORT = {
    "core": {"core"},
    "configs": {"configs", "core"},
    "bus": {"bus", "core"},
    "actors": {"actors", "bus", "configs", "core"},
    "runners": {"runners", "actors", "bus", "configs", "core"},
}
PACKAGES = set(MAY_IMPORT)


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module)
    return names


def sources(package: str) -> list[Path]:
    return [path for path in sorted((ROOT / package).rglob("*.py")) if "starter" not in path.parts]


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_arrows_run_down(package):
    found = {
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sources(package)
        for name in imported(path)
        if (top := name.split(".")[0]) in PACKAGES and top not in MAY_IMPORT[package]
    }
    assert not found


def test_only_the_bus_knows_nats():
    found = {
        str(path.relative_to(ROOT))
        for package in PACKAGES - {"bus"}
        for path in sources(package)
        if any(name.split(".")[0] == "nats" for name in imported(path))
    }
    assert not found


@pytest.mark.parametrize(
    "module",
    [
        "bus.run_bus",
        "bus.nats",
        "bus.memory",
        "configs.load",
        "configs.importing.importer",
        "runners.cli",
        "core.tasks.sources",
    ],
)
def test_light_rooms_import_no_torch(module):
    code = (
        f"import {module}, sys\nheavy = {{'torch', 'triton', 'transformers'}} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_help_imports_no_torch():
    code = (
        "import sys, runners.cli\ntry:\n    runners.cli.main(['--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'triton', 'transformers', 'pydantic', 'nats', 'numpy'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "COMMAND" in done.stdout
