"""The few Linux calls that the sandbox is made of, through ctypes: namespaces, mounts, seccomp, Landlock, prctl.

Nothing here knows what a candidate is. Every function raises OSError with the call's name when the kernel refuses;
nothing is retried or ignored, so that a level that was not reached is never believed to be.
"""

import ctypes
import os
import platform
import struct
from collections.abc import Iterable

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
CLONE_THREAD = 0x00010000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_DETACH = 2

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP = 1, 4, 24
_PR_SET_SECCOMP, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 22, 36, 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def _check(result: int, call: str) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{call}: {os.strerror(error)}")
    return result


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags), f"unshare({flags:#x})")


def setns(fd: int, kind: int) -> None:
    _check(_libc.setns(fd, kind), "setns")


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    result = _libc.mount(
        source.encode(), target.encode(), kind.encode() or None, ctypes.c_ulong(flags), options.encode() or None
    )
    _check(result, f"mount({source or kind} on {target})")


def bind_read_only(source: str, target: str, extra: int = 0) -> None:
    """Show `source` at `target`, read-only; flags that the source's own mount is locked to are kept."""
    mount(source, target, flags=MS_BIND | MS_REC)
    locked = os.statvfs(target).f_flag & (MS_NOSUID | MS_NODEV | MS_NOEXEC)
    mount("", target, flags=MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | locked | extra)


def unmount(target: str) -> None:
    _check(_libc.umount2(target.encode(), MNT_DETACH), f"umount({target})")


def pivot_root(new_root: str) -> None:
    """Make `new_root` (a mount point) the root and forget the old one."""
    os.chdir(new_root)
    _check(_libc.pivot_root(b".", b"."), "pivot_root")
    _check(_libc.umount2(b".", MNT_DETACH), "umount of the old root")
    os.chdir("/")


def _prctl(option: int, a: int = 0, b: int = 0, c: int = 0, d: int = 0) -> None:
    words = [ctypes.c_ulong(word) for word in (a, b, c, d)]
    _check(_libc.prctl(option, *words), f"prctl({option})")


def die_with_parent(parent: int) -> None:
    """SIGKILL for this process when its parent ends; `parent` closes the gap before the call (0: don't check)."""
    _prctl(_PR_SET_PDEATHSIG, 9)
    if parent and os.getppid() != parent:
        os._exit(1)


def set_dumpable(on: bool) -> None:
    """Off: other processes of the same user can't open this one's memory or descriptors through /proc."""
    _prctl(_PR_SET_DUMPABLE, int(on))


def become_subreaper() -> None:
    """Orphans below this process become its children instead of init's, so that none gets away."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def no_new_privileges() -> None:
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def drop_capabilities() -> None:
    """Empty the bounding, ambient, effective, permitted and inheritable sets."""
    for capability in range(64):
        if _libc.prctl(_PR_CAPBSET_DROP, ctypes.c_ulong(capability), 0, 0, 0) < 0:
            break
    _libc.prctl(_PR_CAP_AMBIENT, ctypes.c_ulong(_PR_CAP_AMBIENT_CLEAR_ALL), 0, 0, 0)
    header = struct.pack("=Ii", 0x20080522, 0)
    _check(_libc.capset(header, bytes(24)), "capset")


def close_all_but(keep: Iterable[int]) -> None:
    """Close every descriptor above 2 except `keep`."""
    low = 3
    for fd in sorted(keep):
        if fd > low:
            _check(_libc.close_range(low, fd - 1, 0), "close_range")
        low = max(low, fd + 1)
    _check(_libc.close_range(low, 0xFFFFFFFF, 0), "close_range")


# --- seccomp -----------------------------------------------------------------------------------------------------

_EPERM, _ENOSYS = 1, 38
_NUMBERS = {  # x86-64
    "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "process_madvise": 440, "kcmp": 312,
    "kill": 62, "tkill": 200, "rt_sigqueueinfo": 129, "rt_tgsigqueueinfo": 297,
    "pidfd_open": 434, "pidfd_send_signal": 424, "pidfd_getfd": 438,
    "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161, "unshare": 272, "setns": 308,
    "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433,
    "mount_setattr": 442, "open_by_handle_at": 304, "name_to_handle_at": 303, "quotactl": 179, "acct": 163,
    "bpf": 321, "perf_event_open": 298, "userfaultfd": 323, "io_uring_setup": 425, "io_uring_enter": 426,
    "io_uring_register": 427, "add_key": 248, "request_key": 249, "keyctl": 250,
    "kexec_load": 246, "kexec_file_load": 320, "init_module": 175, "finit_module": 313, "delete_module": 176,
    "reboot": 169, "swapon": 167, "swapoff": 168, "settimeofday": 164, "clock_settime": 227, "adjtimex": 159,
    "iopl": 172, "ioperm": 173, "personality": 135, "sethostname": 170, "setdomainname": 171,
    "socket": 41, "connect": 42, "bind": 49, "listen": 50, "accept": 43, "accept4": 288,
    "shmget": 29, "shmat": 30, "msgget": 68, "semget": 64, "mq_open": 240, "syslog": 103,
}  # fmt: skip
_FORKS = {"fork": 57, "vfork": 58, "execve": 59, "execveat": 322}
_CLONE, _CLONE3, _TGKILL, _PRLIMIT = 56, 435, 234, 302
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000


def seccomp_available() -> bool:
    return platform.machine() == "x86_64" and platform.system() == "Linux"


def install_seccomp(allow_processes: bool) -> None:
    """Refuse (EPERM) what a kernel never needs: other processes' memory, signals to others, mounts, namespaces,
    sockets, IPC, kernel interfaces; and new processes as well unless `allow_processes` (the compiler runs an
    assembler)."""
    code: list[tuple[int, int, int, int]] = []
    load, jump_eq, jump_set, ret = 0x20, 0x15, 0x45, 0x06
    code += [(load, 0, 0, 4), (jump_eq, 1, 0, 0xC000003E), (ret, 0, 0, _KILL)]  # another ABI would be unfiltered
    code += [(load, 0, 0, 0), (jump_set, 0, 1, 0x40000000), (ret, 0, 0, _ERRNO | _EPERM)]
    refused = dict(_NUMBERS) if allow_processes else {**_NUMBERS, **_FORKS}
    for number in refused.values():
        code += [(jump_eq, 0, 1, number), (ret, 0, 0, _ERRNO | _EPERM)]
    # glibc falls back from clone3, whose flags are behind a pointer, to clone.
    code += [(jump_eq, 0, 1, _CLONE3), (ret, 0, 0, _ERRNO | _ENOSYS)]
    if allow_processes:
        namespaces = CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET
        code += [(jump_eq, 0, 3, _CLONE), (load, 0, 0, 16), (jump_set, 0, 1, namespaces), (ret, 0, 0, _ERRNO | _EPERM)]
    else:
        code += [
            (jump_eq, 0, 3, _CLONE),
            (load, 0, 0, 16),
            (jump_set, 1, 0, CLONE_THREAD),
            (ret, 0, 0, _ERRNO | _EPERM),
        ]
    code += [(load, 0, 0, 0)]
    if not allow_processes:  # abort() signals its own process; other processes are out of reach
        code += [(jump_eq, 0, 3, _TGKILL), (load, 0, 0, 16), (jump_eq, 1, 0, os.getpid()), (ret, 0, 0, _ERRNO | _EPERM)]
        code += [(load, 0, 0, 0)]
        code += [(jump_eq, 0, 3, _PRLIMIT), (load, 0, 0, 16), (jump_eq, 1, 0, 0), (ret, 0, 0, _ERRNO | _EPERM)]
    code += [(ret, 0, 0, _ALLOW)]
    program = b"".join(struct.pack("=HBBI", *instruction) for instruction in code)
    buffer = ctypes.create_string_buffer(program)
    header = struct.pack("@HP", len(code), ctypes.addressof(buffer))
    _check(_libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(2), ctypes.c_char_p(header), 0, 0), "seccomp")


# --- Landlock ----------------------------------------------------------------------------------------------------

_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_READ = 0b1101  # execute, read file, read dir
_BITS_OF_ABI = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}


def landlock_abi() -> int:
    """Version of Landlock in this kernel, 0 when there is none."""
    version = _libc.syscall(_LANDLOCK_CREATE, None, 0, 1)
    return max(0, version)


def install_landlock(read: Iterable[str], write: Iterable[str]) -> None:
    """After this the process (and its children) can read only below `read` and write only below `write`."""
    everything = (1 << _BITS_OF_ABI.get(min(landlock_abi(), 5), 13)) - 1
    ruleset = _check(_libc.syscall(_LANDLOCK_CREATE, struct.pack("=Q", everything), 8, 0), "landlock_create_ruleset")
    for paths, rights in ((read, _READ), (write, everything)):
        for path in paths:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
            allowed = rights if os.path.isdir(path) else rights & 0b111
            rule = struct.pack("=Qi", allowed, fd)
            _check(_libc.syscall(_LANDLOCK_ADD, ruleset, 1, rule, 0), f"landlock_add_rule({path})")
            os.close(fd)
    _check(_libc.syscall(_LANDLOCK_RESTRICT, ruleset, 0), "landlock_restrict_self")
    os.close(ruleset)
