"""The limit on a confined process's processor time, and whether that limit is what ended it.

The limit is for what the wall does not see: threads side by side, a wall put off on a busy machine. The kernel keeps it
with SIGKILL, which nobody can catch, and which the lack of memory sends as well. SIGXCPU, which it would send before,
says nothing: a candidate may ignore it, and the first process of a PID namespace never gets it. So whoever has the
process for a child looks at the very clock that the kernel compares: `wait4`'s times are scaled, and may be below a
limit that was reached.
"""

import contextlib
import math
import os
import signal
import time

GRACE_S = 5


def limit_s(wall_s: float, grace_s: int = GRACE_S) -> int:
    """For RLIMIT_CPU: more than one thread can use within its wall."""
    return math.ceil(wall_s) + grace_s


def ran_out(child: int, limit: int) -> bool:
    """Whether a child that has ended, and was not reaped yet, was ended by its RLIMIT_CPU."""
    how = os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    if how is None or how.si_code != os.CLD_KILLED or how.si_status != signal.SIGKILL:
        return False
    with contextlib.suppress(OSError):  # a kernel that does not tell
        return time.clock_gettime(~child << 3) >= limit  # CPUCLOCK_PROF of that process
    return False
