"""Judges that all files of the room share in one process: a zygote takes seconds to start."""

import functools
import os

import msgspec

from core.evaluation.judge import Judge
from core.evaluation.settings import JudgeSettings
from core.evaluation.walls import landlock, sandbox
from core.evaluation.walls.namespaces import Walls

LEVELS = {"namespaces": "judge", "basic": "basic", "user_namespace": "user_namespace"}
"""Levels of walls, and the judge behind each."""
SETTINGS = JudgeSettings(wall_s=10.0, memory_mb=1024)


@functools.cache
def has_namespaces() -> bool:
    return sandbox.probe().level == "namespaces"


def _with_user_namespace(settings: JudgeSettings, slot: int) -> Judge:
    """Behind the walls of an evaluator that is not root."""
    one = Judge(settings, slot)
    one.walls = one._zygote.walls = Walls(
        level="namespaces", user_namespace=True, root=os.geteuid() == 0, seccomp=True, landlock_abi=landlock.abi()
    )
    return one


def _make(name: str) -> Judge:
    if name == "compiling":
        target = msgspec.structs.replace(SETTINGS, target="cuda:90", compile_wall_s=30.0)
        return Judge(target, slot=94)
    if name == "user_namespace":
        return _with_user_namespace(SETTINGS, slot=95)
    isolation = "auto" if name == "judge" else "basic"
    return Judge(msgspec.structs.replace(SETTINGS, isolation=isolation), slot=91)


class Judges:
    """name -> a judge that is ready, started when it is first asked for. `judge` has this machine's strongest walls;
    `basic` and `sibling` the weaker; `user_namespace` those of an evaluator that is not root; `compiling` builds for
    cuda:90 as well."""

    def __init__(self) -> None:
        self._made: dict[str, Judge] = {}

    def begin(self, *names: str) -> None:
        """Start these side by side, without waiting for them."""
        for name in names:
            if name not in self._made:
                self._made[name] = _make(name)
                self._made[name].start()

    def __getitem__(self, name: str) -> Judge:
        self.begin(name)
        self._made[name].wait_ready()
        return self._made[name]

    def stop(self) -> None:
        for one in self._made.values():
            one.stop()
