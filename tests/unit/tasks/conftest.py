import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


def _in_process(script: str, cases: list[dict], folder: Path) -> Any:
    (folder / "cases.json").write_text(json.dumps(cases))
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment |= {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(HERE.parents[2]),
        "TRITON_CACHE_DIR": str(folder / "cache"),
    }
    command = [sys.executable, HERE / script, folder / "cases.json", folder / "answers.json"]
    subprocess.run(command, check=True, env=environment)
    return json.loads((folder / "answers.json").read_text())


@pytest.fixture
def run_kernels() -> Callable[[list[dict], Path], list[tuple[str, float]]]:
    """Runs cases (source, kernel, seed) in one interpreter process: a word and the CPU seconds of each."""
    return lambda cases, folder: _in_process("run_kernels.py", cases, folder)


@pytest.fixture
def cross_compile() -> Callable[[list[dict], Path], list[list[tuple[str, int]]]]:
    """Compiles what cases (source, kernel) launch for an H100: names and bytes of shared memory."""
    return lambda cases, folder: _in_process("cross_compile.py", cases, folder)
