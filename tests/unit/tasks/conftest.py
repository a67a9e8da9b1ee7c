import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def run_kernels() -> Callable[[list[dict], Path], list[tuple[str, float]]]:
    """Runs cases (source, kernel, seed) in one interpreter process: a word and the seconds of each."""

    def run(cases: list[dict], folder: Path) -> list[tuple[str, float]]:
        (folder / "cases.json").write_text(json.dumps(cases))
        script = Path(__file__).with_name("run_kernels.py")
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[3])}
        command = [sys.executable, script, folder / "cases.json", folder / "answers.json"]
        subprocess.run(command, check=True, env=environment)
        return json.loads((folder / "answers.json").read_text())

    return run
