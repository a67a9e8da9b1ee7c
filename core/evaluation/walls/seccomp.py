"""System calls that a confined process may make: three filters, none of which a candidate can take off again.

executor   runs operators and kernels for a candidate; no candidate code in it. May not start anything or reach out.
host       imports the candidate. As the executor, and: nothing that holds memory outside its address space
           (memory files), nothing that reaches the executor (signals by any road, foreign limits or priorities), and
           the death with its parent can't be undone.
compile    as the host, but new processes are allowed: the compiler runs an assembler.
gpu        as compile, and the few calls that a GPU's driver needs.

Calls that are refused answer EPERM, so that a candidate gets a Python exception instead of a dead process.
"""

import ctypes
import os
import platform
import struct
from typing import Literal

from core.evaluation.walls import linux

Filter = Literal["executor", "host", "compile", "gpu"]

_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Machine -> (column in the tables below, audit number)."""
_X32_BIT = 0x40000000
_EPERM, _ENOSYS = 1, 38
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000

# name: (x86-64, aarch64); -1 where the architecture has no such call
REFUSED = {
    # another process's memory, descriptors, signals
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "process_madvise": (440, 440), "process_mrelease": (448, 448), "move_pages": (279, 239),
    "migrate_pages": (256, 238), "kill": (62, 129), "tkill": (200, 130), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424),
    "pidfd_getfd": (438, 438),
    # mounts and namespaces
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "unshare": (272, 97),
    "setns": (308, 268), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264), "quotactl": (179, 60), "quotactl_fd": (443, 443),
    "acct": (163, 89), "fanotify_init": (300, 262),
    # kernel interfaces
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "add_key": (248, 217), "request_key": (249, 218),
    "keyctl": (250, 219), "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105),
    "finit_module": (313, 273), "delete_module": (176, 106), "reboot": (169, 142), "swapon": (167, 224),
    "swapoff": (168, 225), "settimeofday": (164, 170), "clock_settime": (227, 112), "clock_adjtime": (305, 266),
    "adjtimex": (159, 171), "iopl": (172, -1), "ioperm": (173, -1), "modify_ldt": (154, -1),
    "personality": (135, 92), "sethostname": (170, 161), "setdomainname": (171, 162), "syslog": (103, 116),
    # sockets and System V IPC
    "socket": (41, 198), "socketpair": (53, 199), "connect": (42, 203), "bind": (49, 200), "listen": (50, 201),
    "accept": (43, 202), "accept4": (288, 242), "shmget": (29, 194), "shmat": (30, 196), "msgget": (68, 186),
    "semget": (64, 190), "mq_open": (240, 180),
    # priorities and processors, also of others
    "setpriority": (141, 140), "ioprio_set": (251, 30), "sched_setparam": (142, 118), "sched_setscheduler": (144, 119),
    "sched_setaffinity": (203, 122), "sched_setattr": (314, 274),
}  # fmt: skip
FORKS = {"fork": (57, -1), "vfork": (58, -1), "execve": (59, 221), "execveat": (322, 281)}
MEMORY = {"memfd_create": (319, 279), "memfd_secret": (447, 447), "vmsplice": (278, 75)}
"""Memory that no limit on the address space counts: files without a name, pages held by pipes."""
NEEDED_BY_GPU: frozenset[str] = frozenset({"bind", "listen", "socket"})
"""Calls that NVIDIA's driver can't do without (580.159: cuInit answers 304): it listens on a Unix socket of its own. Of
sockets only AF_UNIX is let through, none for datagrams, which need no connection; connecting and accepting stay
refused: it leads nowhere."""
_AF_UNIX, _SOCK_DGRAM, _SOCK_TYPE = 1, 2, 0xF
_CLONE, _CLONE3, _TGKILL, _PRLIMIT = (56, 220), (435, 435), (234, 131), (302, 261)
_PRCTL, _FCNTL, _IOCTL, _SOCKET = (157, 167), (72, 25), (16, 29), (41, 198)
_PRCTL_REFUSED = {"PR_SET_PDEATHSIG": 1, "PR_SET_DUMPABLE": 4, "PR_SET_MM": 35, "PR_SET_PTRACER": 0x59616D61}
_FCNTL_REFUSED = {"F_SETOWN": 8, "F_SETSIG": 10, "F_SETOWN_EX": 15}
"""With O_ASYNC the kernel sends a signal of one's choice, SIGKILL too, to the process named."""
_IOCTL_REFUSED = {"FIOSETOWN": 0x8901, "SIOCSPGRP": 0x8902, "TIOCSTI": 0x5412, "TIOCLINUX": 0x541C}

_LOAD, _EQUAL, _ANY_BIT, _RETURN, _AND = 0x20, 0x15, 0x45, 0x06, 0x54
_NUMBER, _ARCH = 0, 4


def _argument(index: int) -> int:
    """Offset of the low half of argument `index`; what is compared here is an int to the kernel."""
    return 16 + 8 * index


def available() -> bool:
    """Whether the filters know this machine's calls and the kernel takes filters."""
    return platform.system() == "Linux" and platform.machine() in _ARCHITECTURES and linux.has_seccomp()


def install(kind: Filter, threads: bool = True) -> None:
    """Confine the calling thread and everything it starts; needs no_new_privs. Raises OSError when refused.

    Without `threads` none can be started: for children whose threads no limit counts (compile: has no effect)."""
    program = b"".join(struct.pack("=HBBI", *instruction) for instruction in _program(kind, threads))
    buffer = ctypes.create_string_buffer(program)
    linux.set_seccomp(struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer)))


def _program(kind: Filter, threads: bool) -> list[tuple[int, int, int, int]]:
    column, audit = _ARCHITECTURES[platform.machine()]
    refuse = (_RETURN, 0, 0, _ERRNO | _EPERM)
    # Another ABI's numbers would not be filtered.
    code = [(_LOAD, 0, 0, _ARCH), (_EQUAL, 1, 0, audit), (_RETURN, 0, 0, _KILL)]
    code += [(_LOAD, 0, 0, _NUMBER), (_ANY_BIT, 0, 1, _X32_BIT), refuse]
    refused = dict(REFUSED)
    if kind not in ("compile", "gpu"):
        refused.update(FORKS)
        if not threads:
            refused["clone"] = _CLONE
    if kind != "executor":
        refused.update(MEMORY)
    if kind == "gpu":
        refused = {name: numbers for name, numbers in refused.items() if name not in NEEDED_BY_GPU}
        code += _when(_SOCKET[column], 0, [(_EQUAL, 1, 0, _AF_UNIX), refuse])
        code += _when(_SOCKET[column], 1, [(_AND, 0, 0, _SOCK_TYPE), (_EQUAL, 0, 1, _SOCK_DGRAM), refuse])
    for numbers in refused.values():
        if numbers[column] >= 0:
            code += [(_EQUAL, 0, 1, numbers[column]), refuse]
    # glibc falls back from clone3, whose flags are behind a pointer, to clone.
    code += [(_EQUAL, 0, 1, _CLONE3[column]), (_RETURN, 0, 0, _ERRNO | _ENOSYS)]
    if kind in ("compile", "gpu"):
        code += _when(_CLONE[column], 0, [(_ANY_BIT, 0, 1, linux.NAMESPACES), refuse])
    else:
        code += _when(_CLONE[column], 0, [(_ANY_BIT, 1, 0, linux.CLONE_THREAD), refuse])
        # abort() signals its own process. SIGKILL and SIGSTOP from oneself would look like memory or time that ran out.
        code += _when(_TGKILL[column], 0, [(_EQUAL, 1, 0, os.getpid()), refuse])
        code += _when(_TGKILL[column], 2, [(_EQUAL, 0, 1, 9), refuse, (_EQUAL, 0, 1, 19), refuse])
        code += _when(_PRLIMIT[column], 0, [(_EQUAL, 1, 0, 0), refuse])
    if kind != "executor":
        for call, argument, values in ((_PRCTL, 0, _PRCTL_REFUSED), (_FCNTL, 1, _FCNTL_REFUSED),
                                       (_IOCTL, 1, _IOCTL_REFUSED)):  # fmt: skip
            tests = [step for value in values.values() for step in ((_EQUAL, 0, 1, value), refuse)]
            code += _when(call[column], argument, tests)
    return [*code, (_RETURN, 0, 0, _ALLOW)]


def _when(number: int, argument: int, tests: list[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
    """Run `tests` on one argument of one call; the call's number is loaded again after them."""
    body = [(_LOAD, 0, 0, _argument(argument)), *tests, (_LOAD, 0, 0, _NUMBER)]
    return [(_EQUAL, 0, len(body), number), *body]
