"""Which walls this machine allows, what is missing of them, and what to do about it.

Found by trying, in short-lived children, never by reading version numbers: a container may forbid what its kernel has.
"""

import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Literal

import msgspec

from core.evaluation.walls import jail, landlock, linux, seccomp

Level = Literal["namespaces", "basic"]
FIRST_UID = 61000
"""Where we are root, zygote number n has the users FIRST_UID + 2n (candidates) and FIRST_UID + 2n + 1 (executors)."""
LAST_SLOT = 2200
"""The last user id stays below 65534: containers often know no higher ones."""
NAMESPACES = linux.CLONE_NEWNS | linux.CLONE_NEWNET | linux.CLONE_NEWIPC | linux.CLONE_NEWUTS


class Walls(msgspec.Struct, frozen=True, kw_only=True):
    """What was reached, for `doctor` and the log."""

    level: Level
    user_namespace: bool = False
    own_uid: bool = False
    root: bool = False
    """The judge is the machine's root, whose threads no limit of the kernel counts."""
    landlock_abi: int = 0
    seccomp: bool = False

    @property
    def hides_files(self) -> bool:
        """Whether a candidate's process opens only what it is shown, files of devices too."""
        return self.level == "namespaces" or self.landlock_abi > 0

    @property
    def counts_threads(self) -> bool:
        """Whether a limit on threads can hold for one child alone: the kernel counts them by user and user
        namespace."""
        return self.own_uid or (self.user_namespace and not self.root and _kernel() >= (5, 14))

    def describe(self) -> str:
        parts: list[str] = [self.level]
        parts += ["user namespace"] if self.user_namespace else []
        parts += ["own uid"] if self.own_uid else []
        parts += [f"Landlock {self.landlock_abi}"] if self.level == "basic" and self.landlock_abi else []
        parts += ["seccomp"] if self.seccomp else []
        return ", ".join(parts)

    def missing(self) -> list[str]:
        """What a candidate can do because a wall is not there; empty at the strong level."""
        found = []
        if self.level == "basic":
            found.append("no namespaces: a candidate can read what is installed beside torch")
            if not self.landlock_abi and not self.own_uid:
                found.append("no Landlock and no user of its own: it can read and write every file that the judge can")
            elif not self.landlock_abi:
                found.append("no Landlock: it can read and write every file that is open to all users")
            elif not self.own_uid:
                found.append("no user of its own: nothing but Landlock and seccomp keeps it from the judge's files")
        if not self.seccomp:
            reach = "it can start processes" if self.level == "namespaces" else "it can start processes and use sockets"
            found.append(f"no seccomp: {reach}, and memory files are not counted by its memory limit")
        return found

    @property
    def holds(self) -> bool:
        """Whether files, processes and the network are out of a candidate's reach at all (REQUIREMENTS E1)."""
        return self.seccomp and (self.level == "namespaces" or self.landlock_abi > 0)


def candidate_uid(slot: int) -> int:
    """The user that a candidate of zygote number `slot` runs as, where each has its own."""
    return FIRST_UID + 2 * slot


def executor_uid(slot: int) -> int:
    return FIRST_UID + 2 * slot + 1


def outer_flags(walls: Walls) -> int:
    """Namespaces of the zygote."""
    return NAMESPACES | linux.CLONE_NEWPID | (linux.CLONE_NEWUSER if walls.user_namespace else 0)


def probe(most: Level = "namespaces") -> Walls:
    """The strongest walls that this machine allows, `most` at most."""
    root = os.geteuid() == 0
    plain = Walls(
        level="basic",
        root=root,
        landlock_abi=landlock.abi() if _succeeds(_try_landlock) else 0,
        seccomp=seccomp.available(),
    )
    if most == "namespaces":
        for user_namespace in [False, True] if root else [True]:
            walls = msgspec.structs.replace(plain, level="namespaces", user_namespace=user_namespace)
            if _succeeds(partial(_try_namespaces, outer_flags(walls))):
                own_uid = not user_namespace and _succeeds(_become_another) and _world_readable()
                return msgspec.structs.replace(walls, own_uid=own_uid)
    return msgspec.structs.replace(plain, own_uid=root and _succeeds(_read_needed))


def advice() -> str:
    """How this machine could get namespaces, from what it says of itself."""
    if _word("/proc/sys/user/max_user_namespaces") == "0":
        return "sysctl user.max_user_namespaces=10000 (as root, on the host)"
    if _word("/proc/sys/kernel/unprivileged_userns_clone") == "0":
        return "sysctl kernel.unprivileged_userns_clone=1 (as root, on the host)"
    if _filtered() or os.path.exists("/.dockerenv"):
        return (
            "in a container: --security-opt seccomp=docs/seccomp-evaluator.json --security-opt apparmor=unconfined "
            "--cap-add SYS_ADMIN, as docker-compose.yml does"
        )
    if _word("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1":
        return "sysctl kernel.apparmor_restrict_unprivileged_userns=0 (as root, on the host)"
    return "run the evaluator as root, or allow user namespaces to its user"


def _kernel() -> tuple[int, ...]:
    return tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2] if part.isdigit())


def _word(path: str) -> str:
    if not os.path.exists(path):
        return ""
    with open(path) as file:
        return file.read().strip()


def _filtered() -> bool:
    """Whether a seccomp filter is on this process already: a container's profile."""
    with open("/proc/self/status") as file:
        return any(line.split() == ["Seccomp:", "2"] for line in file)


def _succeeds(action: Callable[[], object]) -> bool:
    """Whether `action` raises nothing in a child of its own."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            action()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def _try_namespaces(flags: int) -> None:
    jail.enter_namespaces(flags)
    linux.mount("tmpfs", jail.MOUNT_POINT, "tmpfs", linux.MS_NOSUID, "size=4k")
    if os.fork() == 0:  # the first process of the PID namespace
        os._exit(0)
    os.wait()


def _try_landlock() -> None:
    linux.no_new_privileges()
    landlock.restrict_files([], [])


def _become_another() -> None:
    uid = candidate_uid(LAST_SLOT)
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def _needed() -> list[str]:
    """Files that stand for Python, its library and torch."""
    files = [os.path.join(os.path.dirname(os.__file__), "abc.py"), sys.executable]
    return files + [
        path for path in (os.path.join(folder, "torch", "__init__.py") for folder in sys.path) if os.path.exists(path)
    ]


def _world_readable() -> bool:
    """By their own modes: inside the jail the folders above them are ours."""
    return all(os.stat(path).st_mode & 0o004 for path in _needed())


def _read_needed() -> None:
    """As another user, through every folder above them."""
    needed = _needed()
    _become_another()
    for path in needed:
        with open(path, "rb") as file:
            file.read(1)
