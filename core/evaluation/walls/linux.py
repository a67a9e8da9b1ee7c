"""The few Linux calls that the sandbox is made of, through ctypes: namespaces, mounts, prctl, raw system calls.

Nothing here knows what a candidate is. Every function raises OSError with the call's name when the kernel refuses;
nothing is retried or ignored, so that a level that was not reached is never believed to be.
"""

import ctypes
import errno
import os
import struct
from collections.abc import Iterable

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
CLONE_THREAD = 0x00010000
NAMESPACES = CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET

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


def syscall(number: int, *arguments: int | bytes | None) -> int:
    """The raw call's answer, -1 for any error."""
    words = [ctypes.c_ulong(word) if isinstance(word, int) else word for word in arguments]
    return int(_libc.syscall(ctypes.c_long(number), *words))


def checked(name: str, number: int, *arguments: int | bytes | None) -> int:
    """As `syscall`; raises OSError with the call's name."""
    return _check(syscall(number, *arguments), name)


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


def has_seccomp() -> bool:
    """Whether the kernel takes filters: it looks at the program's address only when it does."""
    ctypes.set_errno(0)
    _libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(2), None, 0, 0)
    return ctypes.get_errno() == errno.EFAULT


def set_seccomp(header: bytes) -> None:
    """Install the filter that `header` (a struct sock_fprog) describes."""
    _check(_libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(2), ctypes.c_char_p(header), 0, 0), "seccomp")
