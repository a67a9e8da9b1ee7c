"""The walls around a candidate, strongest first, and which of them this machine allows.

namespaces   The zygote lives in mount, PID, network, IPC and UTS namespaces (a user namespace too where we are
             not root) whose root holds nothing but the Python installation, read-only; /proc, the repository and the
             run folder are not there. Every child gets a PID, mount, network, IPC and UTS namespace of its own below
             that and a tmpfs to write on, so that its whole process tree and every file die with it.
basic        Where namespaces are refused (a default Docker profile): a temporary folder made and removed by the trusted
             side, Landlock (reads only below the Python installation, writes only in that folder), a session of its
             own. What is installed beside torch can be read here, this package's task sources included.
both         a user id of its own where we are root, no capabilities, no_new_privs, seccomp (no new processes, sockets,
             signals to others, foreign memory), limits on memory, files, descriptors and CPU time, no inherited
             descriptors, death with the parent.

One zygote runs one child at a time; siblings share nothing that can be written. All functions here run in the zygote or
in a child before any candidate code; they raise OSError when a wall can't be built and the candidate then never starts.
"""

import math
import os
import resource
import sys
from typing import Literal

import msgspec

from core.evaluation import landlock, linux, seccomp

Level = Literal["namespaces", "basic"]
FIRST_UID = 61000
"""Where we are root, zygote number n has the users FIRST_UID + 2n (candidates) and FIRST_UID + 2n + 1 (executors)."""
TMP_FILES = 4096
_NAMESPACES = linux.CLONE_NEWNS | linux.CLONE_NEWNET | linux.CLONE_NEWIPC | linux.CLONE_NEWUTS


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What one child may use."""

    memory_mb: int
    wall_s: float
    """CPU seconds are limited to a little more than this; the wall itself is watched by the trusted side."""
    tmp_mb: int = 64
    threads: int = 64
    allow_processes: bool = False
    """The compiler runs an assembler."""


class Walls(msgspec.Struct, frozen=True, kw_only=True):
    """What was reached, for `doctor` and the log."""

    level: Level
    user_namespace: bool = False
    own_uid: bool = False
    landlock_abi: int = 0
    seccomp: bool = False

    def describe(self) -> str:
        parts: list[str] = [self.level]
        parts += ["user namespace"] if self.user_namespace else []
        parts += ["own uid"] if self.own_uid else []
        parts += [f"Landlock {self.landlock_abi}"] if self.level == "basic" and self.landlock_abi else []
        parts += ["seccomp"] if self.seccomp else []
        return ", ".join(parts)


def probe() -> Walls:
    """The strongest walls that this machine allows, found by trying them in a short-lived child."""
    user_namespace = os.geteuid() != 0
    if _works(_NAMESPACES | linux.CLONE_NEWPID | (linux.CLONE_NEWUSER if user_namespace else 0)):
        level: Level = "namespaces"
    elif not user_namespace and _works(_NAMESPACES | linux.CLONE_NEWPID | linux.CLONE_NEWUSER):
        level, user_namespace = "namespaces", True
    else:
        level, user_namespace = "basic", False
    return Walls(
        level=level,
        user_namespace=user_namespace,
        own_uid=os.geteuid() == 0 and not user_namespace and _world_readable(),
        landlock_abi=landlock.abi(),
        seccomp=seccomp.available(),
    )


def _works(flags: int) -> bool:
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            enter_namespaces(flags)
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def _world_readable() -> bool:
    """Whether another user could import what a candidate needs."""
    files = [os.path.join(os.path.dirname(os.__file__), "abc.py"), sys.executable]
    files += [
        path for path in (os.path.join(folder, "torch", "__init__.py") for folder in sys.path) if os.path.exists(path)
    ]
    return all(os.stat(path).st_mode & 0o004 for path in files)


def _is_a_repository(path: str) -> bool:
    """On sys.path in a development install; what a candidate's process needs of it was imported before it was
    forked. A wheel's packages lie among others, which are needed."""
    return all(os.path.isdir(os.path.join(path, name)) for name in ("core/evaluation", "actors", "tests"))


_address_space = 0


def note_address_space() -> None:
    """Remember how much address space the zygote has, while /proc can be read; a child's memory limit starts there."""
    global _address_space
    with open("/proc/self/statm") as file:
        _address_space = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def enter_namespaces(flags: int) -> None:
    """Leave the machine's namespaces; what this process mounts from now on is its own.
    PIDs change with the next fork."""
    uid, gid = os.geteuid(), os.getegid()
    linux.unshare(flags)
    if flags & linux.CLONE_NEWUSER:
        for name, line in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(line)
    linux.mount("", "/", flags=linux.MS_REC | linux.MS_PRIVATE)


def outer_flags(walls: Walls) -> int:
    return _NAMESPACES | linux.CLONE_NEWPID | (linux.CLONE_NEWUSER if walls.user_namespace else 0)


def readable_paths() -> list[str]:
    """Folders and files that Python, torch and triton read; outermost only."""
    wanted = [sys.prefix, sys.base_prefix, sys.exec_prefix, os.path.dirname(os.path.realpath(sys.executable))]
    wanted += [
        "/usr",
        "/lib",
        "/lib64",
        "/bin",
        "/opt/rocm",
        "/etc/ld.so.cache",
        "/dev/null",
        "/dev/zero",
        "/dev/urandom",
    ]
    wanted += [path for path in sys.path if os.path.isdir(path) and not _is_a_repository(path)]
    wanted += [os.path.realpath(path) for path in wanted]  # a link shows nothing when its target is not there
    roots: list[str] = []
    for path in sorted({os.path.abspath(path) for path in wanted if path and os.path.exists(path)}):
        if not any(path == root or path.startswith(root + "/") for root in roots):
            roots.append(path)
    return roots


def scratch_folder(readable: list[str]) -> str:
    """Where a candidate may write: /tmp, unless Python itself is installed below it and would be covered."""
    taken = any(path == "/tmp" or path.startswith("/tmp/") for path in readable)
    return "/scratch" if taken else "/tmp"


def build_jail(root: str, hidden: list[str]) -> str:
    """Make `root` (an empty folder) the only file system: a small tmpfs with the readable paths bound into it.

    `hidden` folders that lie inside a readable path are covered by nothing at all. After this there is no /proc.
    Answers with the folder that each candidate covers with a tmpfs of its own (`scratch_folder`).
    """
    scratch = scratch_folder(readable_paths())
    linux.mount("tmpfs", root, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "size=1m,mode=0755")
    for path in readable_paths():
        target = root + path
        if os.path.islink(path):
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.symlink(os.readlink(path), target)
        elif os.path.isdir(path):
            os.makedirs(target, exist_ok=True)
            linux.bind_read_only(path, target)
        else:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            open(target, "w").close()
            linux.bind_read_only(path, target)
    for path in hidden:
        if os.path.isdir(root + path):
            linux.mount("tmpfs", root + path, "tmpfs", linux.MS_RDONLY, "size=4k")
    os.makedirs(root + scratch, exist_ok=True)
    linux.mount("", root, flags=linux.MS_BIND | linux.MS_REMOUNT | linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV)
    linux.pivot_root(root)
    return scratch


def candidate_uid(slot: int) -> int:
    """The user that a candidate of zygote number `slot` runs as, where each has its own."""
    return FIRST_UID + 2 * slot


def _executor_uid(slot: int) -> int:
    return FIRST_UID + 2 * slot + 1


def confine(
    walls: Walls, limits: Limits, folder: str, slot: int, parent: int, keep: list[int], forks: bool = False
) -> None:
    """Run in a fresh child: build its own walls, then give up everything that could take them down.

    With `forks` the child is an executor. It keeps its privileges and limits until it has forked one host:

        confine(..., forks=True)
        executor = os.getpid()
        if os.fork() == 0:
            harden_host(walls, limits_of_the_host, slot, executor, keep)   # then import the candidate
        harden_executor(walls, limits, slot)                               # then read the job

    No candidate code and no job may be in the process before the last two; the host's memory is a copy of what the
    executor holds at the fork.
    """
    os.setsid()
    linux.close_all_but(keep)
    linux.set_dumpable(False)
    if walls.level == "namespaces":
        linux.unshare(_NAMESPACES)
        options = f"size={limits.tmp_mb}m,nr_inodes={TMP_FILES},mode=1777"
        linux.mount("tmpfs", folder, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, options)
    elif walls.landlock_abi:
        linux.no_new_privileges()
        landlock.restrict_files(readable_paths(), [folder, "/dev/null"])
    os.chdir(folder)
    if forks:
        linux.die_with_parent(parent)
        if walls.level == "namespaces":
            linux.unshare(linux.CLONE_NEWPID)  # the host will not see the executor
        return
    _limit(limits, walls)
    if walls.own_uid:
        uid = candidate_uid(slot)
        _become(uid, uid)
    _give_up(parent)
    if walls.seccomp:
        seccomp.install("compile" if limits.allow_processes else "host")


def harden_host(walls: Walls, limits: Limits, slot: int, executor: int, keep: list[int]) -> None:
    """Run in the process that an executor forked, before any candidate code: it can't reach the executor any more.

    `executor` is the executor's own os.getpid(), taken before the fork. `keep` are the descriptors above 2 that stay
    open. `limits` are the host's own; its writable folder and open files stay the executor's.
    """
    os.setsid()  # a signal to its own group must not reach the executor
    linux.close_all_but(keep)
    _limit(limits, walls)
    if walls.own_uid:
        uid = candidate_uid(slot)
        _become(uid, uid)
    # In a PID namespace of its own it has no parent to see; the namespace goes with the executor's.
    _give_up(0 if walls.level == "namespaces" else executor)
    if walls.landlock_abi:
        landlock.scope_signals()
    if walls.seccomp:
        seccomp.install("host")


def harden_executor(walls: Walls, limits: Limits, slot: int) -> None:
    """Run in the executor once it has forked the host: no more processes, nothing outside its own memory."""
    parent = os.getppid()  # still the zygote, or the kernel would have killed this process
    if walls.level == "namespaces":
        own = os.pidfd_open(os.getpid())
        linux.setns(own, linux.CLONE_NEWPID)  # back, or it could start no thread
        os.close(own)
    _limit(limits, walls)
    if walls.own_uid:
        # Effective user is the host's, so that the kernel lets it take the host along when it dies; real and saved
        # are its own, so that the host can't signal it.
        _become(_executor_uid(slot), candidate_uid(slot))
    _give_up(parent)
    if walls.seccomp:
        seccomp.install("executor")


def _become(uid: int, effective: int) -> None:
    os.setgroups([])
    os.setresgid(uid, effective, uid)
    os.setresuid(uid, effective, uid)


def _give_up(parent: int) -> None:
    linux.drop_capabilities()
    linux.die_with_parent(parent)
    linux.no_new_privileges()
    linux.set_dumpable(False)


def _limit(limits: Limits, walls: Walls) -> None:
    cpu = math.ceil(limits.wall_s) + 5
    wanted = {
        resource.RLIMIT_AS: _address_space + limits.memory_mb * 2**20,
        resource.RLIMIT_CPU: cpu,
        resource.RLIMIT_FSIZE: limits.tmp_mb * 2**20,
        resource.RLIMIT_NOFILE: 256,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_MEMLOCK: 0,
    }
    if walls.own_uid:
        wanted[resource.RLIMIT_NPROC] = limits.threads
    for which, value in wanted.items():
        resource.setrlimit(which, (value, value))
