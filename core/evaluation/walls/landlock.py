"""Landlock: a process gives up files, TCP ports and signals to others, for itself and everything it starts.

Needs no privilege but no_new_privs. What a kernel's version of it can't refuse is left out; `abi()` says which version
that is: 1 files, 3 truncation, 4 TCP, 5 device control, 6 signals and abstract sockets to outside the domain.
"""

import os
import struct
from collections.abc import Iterable

from core.evaluation.walls import linux

SCOPES_SIGNALS = 6
"""First version that keeps signals inside the domain."""
_CREATE, _ADD, _RESTRICT = 444, 445, 446
_READ = 0b1101  # execute, read file, read dir
_OF_A_FILE = 0b100000000000111  # execute, write, read, truncate
_BITS_OF_ABI = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
_CONTROL = 1 << 15  # of devices, from version 5 on
_TCP = 0b11  # bind, connect
_SCOPES = 0b11  # abstract UNIX sockets, signals


def abi() -> int:
    """Version of Landlock in this kernel, 0 when there is none."""
    return max(0, linux.syscall(_CREATE, None, 0, 1))


def restrict_files(read: Iterable[str], write: Iterable[str], devices: Iterable[str] = ()) -> None:
    """After this the process can read only below `read`, write only below `write`, control only `devices`, and use no
    TCP port; from version 6 on it reaches no abstract socket and no process outside its domain."""
    version = abi()
    everything = (1 << _BITS_OF_ABI.get(min(version, 5), 13)) - 1
    ruleset = _ruleset(version, everything)
    for paths, rights in ((read, _READ), (write, everything), (devices, everything)):
        for path in paths:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
            of_a_file = _OF_A_FILE | (_CONTROL if paths is devices else 0)
            allowed = rights if os.path.isdir(path) else rights & of_a_file
            linux.checked(f"landlock_add_rule({path})", _ADD, ruleset, 1, struct.pack("=Qi", allowed, fd), 0)
            os.close(fd)
    _restrict(ruleset)


def scope_signals() -> None:
    """A domain below the present one that can't signal a process outside it; its parent's signals still arrive. Does
    nothing before version 6."""
    if abi() >= SCOPES_SIGNALS:
        _restrict(_ruleset(abi(), 0))


def _ruleset(version: int, files: int) -> int:
    attributes = struct.pack("=Q", files)
    if version >= 4:
        attributes += struct.pack("=Q", _TCP)
    if version >= SCOPES_SIGNALS:
        attributes += struct.pack("=Q", _SCOPES)
    return linux.checked("landlock_create_ruleset", _CREATE, attributes, len(attributes), 0)


def _restrict(ruleset: int) -> None:
    linux.checked("landlock_restrict_self", _RESTRICT, ruleset, 0)
    os.close(ruleset)
