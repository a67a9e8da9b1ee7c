"""What `make parity` lets a peer see of ours: the comparison, and none of the tests that bear a package's name."""

import importlib.util
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_peers_find_no_tests_in_place_of_a_package(tmp_path):
    from tests.parity.__main__ import alone

    path = alone(tmp_path)
    assert alone(tmp_path) == path and [entry.name for entry in path.iterdir()] == ["parity"]
    folders = [f.name for f in (ROOT / "tests").iterdir() if f.is_dir() and f.name not in ("parity", "__pycache__")]
    absent = [name for name in folders if importlib.util.find_spec(name) is None]
    assert "vllm" in folders and absent
    asked = (
        f"import importlib.util as u; print([n for n in {absent!r} if u.find_spec(n)]);"
        "print(u.find_spec('parity.compare').name)"
    )
    done = subprocess.run(
        [sys.executable, "-c", asked], cwd=ROOT, env={"PYTHONPATH": f"{ROOT}:{path}"}, capture_output=True, text=True
    )
    assert done.stdout.split() == ["[]", "parity.compare"], done.stderr
