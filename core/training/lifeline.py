"""A helper process must not outlive the process that it works for."""

import contextlib
import ctypes
import os
import signal


def die_with_parent(parent: int) -> None:
    """Ask the kernel for SIGKILL when the thread that started this process goes (Linux; elsewhere the caller looks at
    `orphaned` now and then). Ends at once when `parent`, a process id, is gone already."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # 1 = PR_SET_PDEATHSIG
    if orphaned(parent):
        os._exit(0)


def orphaned(parent: int) -> bool:
    """True when this process was handed to another parent than `parent`."""
    return os.getppid() != parent
