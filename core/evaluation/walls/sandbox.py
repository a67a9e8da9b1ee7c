"""The walls around a candidate, strongest first. `walls.namespaces` finds out which of them a machine allows.

namespaces   The zygote lives in mount, PID, network, IPC and UTS namespaces (a user namespace too where we are
             not root) whose root holds nothing but the Python installation, read-only; /proc, the repository and the
             run folder are not there. Every child gets a PID, mount, network, IPC and UTS namespace of its own below
             that and a tmpfs to write on, so that its whole process tree and every file die with it.
basic        Where namespaces are refused (a default Docker profile): a temporary folder made and removed by the trusted
             side, Landlock (reads only below the Python installation, writes only in that folder), a session of its
             own. What is installed beside torch can be read here, a wheel's task sources included.
both         a user id of its own where we are root, no capabilities, no_new_privs, seccomp (no new processes, sockets,
             signals to others, foreign memory, memory files), limits on memory, files, descriptors, threads and CPU
             time, no inherited descriptors, death with the parent.

A candidate's process is either one child (`confine`) or a host that a confined executor forked (`harden_host`), out of
whose reach the executor is: another PID namespace, another user, another Landlock domain, as far as there are such.

One zygote runs one child at a time; siblings share nothing that can be written. All functions here run in the zygote or
in a child before any candidate code; they raise OSError when a wall can't be built and the candidate then never starts.
"""

import os
import resource

import msgspec

from core.evaluation.walls import cpu_time, landlock, linux, seccomp
from core.evaluation.walls import gpu as gpu_walls
from core.evaluation.walls.jail import build_jail as build_jail
from core.evaluation.walls.jail import enter_namespaces as enter_namespaces
from core.evaluation.walls.jail import readable_paths
from core.evaluation.walls.namespaces import NAMESPACES, executor_uid
from core.evaluation.walls.namespaces import Walls as Walls
from core.evaluation.walls.namespaces import candidate_uid as candidate_uid
from core.evaluation.walls.namespaces import outer_flags as outer_flags
from core.evaluation.walls.namespaces import probe as probe

TMP_FILES = 4096
"""Files and folders that one child may have."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What one child may use."""

    memory_mb: int
    wall_s: float
    """Watched by the trusted side."""
    compilers_s: float = 0.0
    """What compilers that it starts may take on top; each inherits the limit on processor time."""
    grace_s: int = cpu_time.GRACE_S
    """What each process may use of its processor beyond the wall."""
    tmp_mb: int = 64
    threads: int = 64
    allow_processes: bool = False
    """The compiler runs an assembler."""
    device: bool = False
    """It uses a GPU: its address space has no limit (the driver reserves all of it), its data has."""

    @property
    def cpu_limit_s(self) -> int:
        """Processor time of each process: a little more than it could use in its time."""
        return cpu_time.limit_s(self.wall_s + self.compilers_s, self.grace_s)


_address_space = 0


def note_address_space() -> None:
    """Remember how much address space the zygote has, while /proc can be read; a child's memory limit starts there."""
    global _address_space
    with open("/proc/self/statm") as file:
        _address_space = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


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
        linux.unshare(NAMESPACES)
        options = f"size={limits.tmp_mb}m,nr_inodes={TMP_FILES},mode=1777"
        linux.mount("tmpfs", folder, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, options)
        if limits.device:  # the driver names its threads there; of processes it shows the child's own
            linux.mount("proc", "/proc", "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
    elif walls.landlock_abi:
        linux.no_new_privileges()
        extra = gpu_walls.readable() if limits.device else []
        devices = gpu_walls.devices() if limits.device else []
        threads = ["/proc"] if limits.device else []  # the driver names its threads there
        landlock.restrict_files([*readable_paths(), *extra], [folder, "/dev/null", *threads], devices)
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
        kind: seccomp.Filter = "compile" if limits.allow_processes else "host"
        seccomp.install("gpu" if limits.device else kind, walls.counts_threads)


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
        seccomp.install("host", walls.counts_threads)


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
        _become(executor_uid(slot), candidate_uid(slot))
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
    wanted = {
        resource.RLIMIT_AS: _address_space + limits.memory_mb * 2**20,
        resource.RLIMIT_CPU: limits.cpu_limit_s,
        resource.RLIMIT_FSIZE: limits.tmp_mb * 2**20,
        resource.RLIMIT_NOFILE: 128,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_MEMLOCK: 0,
    }
    if limits.device:
        del wanted[resource.RLIMIT_AS]
        wanted[resource.RLIMIT_DATA] = limits.memory_mb * 2**20
        wanted[resource.RLIMIT_NOFILE] = 1024
    if walls.counts_threads:
        wanted[resource.RLIMIT_NPROC] = limits.threads
    for which, value in wanted.items():
        resource.setrlimit(which, (value, value))
