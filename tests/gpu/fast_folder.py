"""Where large files of a moment go. No torch here: whoever starts others need not wait for it."""

import shutil
from pathlib import Path


def in_memory(wanted_gb: float) -> Path | None:
    """/dev/shm where it has room for so much (in a container it may be tiny), else None: the usual temporary folder."""
    memory = Path("/dev/shm")
    return memory if memory.is_dir() and shutil.disk_usage(memory).free > wanted_gb * 1e9 else None
