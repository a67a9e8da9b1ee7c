"""A folder that one command at a time writes in."""

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from core.record.files import RecordError


@contextlib.contextmanager
def one_writer(folder: Path, command: str) -> Iterator[None]:
    """The folder, made where it is absent, is this process's own. Raises RecordError where another one writes there."""
    refuse_link_to_nothing(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RecordError(
                f"another `kernelmill {command}` writes in {folder}: wait for its end, or choose another --out"
            ) from None
        except OSError:  # a file system without locks
            pass
        yield


def refuse_link_to_nothing(folder: Path) -> None:
    if folder.is_symlink() and not folder.exists():
        raise RecordError(f"{folder} is a link to nothing: choose a new folder by --out")
