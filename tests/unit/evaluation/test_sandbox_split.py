"""An executor and the host that it forked: whatever walls there are, the host can't reach the executor."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from core.evaluation.walls import sandbox

HERE = sandbox.probe()
FULL = {"own_uid": HERE.own_uid, "landlock_abi": HERE.landlock_abi, "seccomp": HERE.seccomp}
UNGUARDED = ["outlive", "memory_file", "socket", "fork", "priority", "processors", "namespace"]
"""What only seccomp refuses; none of it reaches the executor (the last three only where users are the same)."""
SCENES = {
    "namespaces": ({"level": "namespaces", **FULL}, []),
    "user_namespace": ({"level": "namespaces", "user_namespace": True, **FULL, "own_uid": False}, []),
    "namespaces_only": ({"level": "namespaces", **FULL, "seccomp": False, "landlock_abi": 0}, UNGUARDED),
    "basic": ({"level": "basic", **FULL}, []),
    "same_user": ({"level": "basic", **FULL, "own_uid": False}, []),
    "no_landlock": ({"level": "basic", **FULL, "landlock_abi": 0}, []),
    "seccomp_only": ({"level": "basic", "seccomp": True}, []),
    "no_seccomp": ({"level": "basic", **FULL, "seccomp": False}, UNGUARDED),
}


def _play(walls: dict[str, object]) -> dict[str, object]:
    with tempfile.TemporaryDirectory(prefix="scene-") as outer:
        folder = os.path.join(outer, "room")
        os.mkdir(folder)
        command = [sys.executable, str(Path(__file__).with_name("split_scene.py")), json.dumps(walls), folder]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout, f"the executor died: {done.stderr}"
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


@pytest.mark.parametrize("name", SCENES)
def test_the_host_cannot_reach_the_executor(name: str) -> None:
    walls, allowed = SCENES[name]
    if walls["level"] == "namespaces" and HERE.level != "namespaces":
        pytest.skip("this machine refuses namespaces")
    answer = _play(walls)
    assert answer["alive"] and answer["intact"]
    assert isinstance(answer["worked"], list), "the host died"
    assert set(answer["worked"]) <= set(allowed)
