"""A folder that appears whole or not at all, and one line for who has no room for it.

    with making(final, hint="free some, then ...") as made:
        write_tensors(made.aside, made.counted(tensors))

What fails in between leaves nothing behind. A full disk, a used-up quota and a limit of this process (`ulimit -f`) are
for a person to mend, so they are told with the folder, how much was to be written and how much is free there.
"""

import contextlib
import errno
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from torch import Tensor

_REASONS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the quota there is used up",
    errno.EFBIG: "a file may not grow so large for this process or file system: see `ulimit -f`",
}
_OS_ERROR = re.compile(r"\(os error (\d+)\)")


class NoRoom(Exception):
    """The text is one line for the person at the keyboard."""


class Making:
    """A folder on its way."""

    def __init__(self, aside: Path) -> None:
        self.aside = aside
        self._bytes = 0
        self._walks: list[Iterator[tuple[str, Tensor]]] = []

    def counted(self, tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """The same tensors; what they take is told when there is no room. Name all before the first is written."""

        def walk() -> Iterator[tuple[str, Tensor]]:
            for name, tensor in tensors:
                self._bytes += tensor.numel() * tensor.element_size()
                yield name, tensor

        self._walks.append(walk())
        return self._walks[-1]

    def whole_bytes(self) -> int:
        """Of all tensors, those that nobody came to included."""
        for walk in self._walks:
            for _ in walk:
                pass
        return self._bytes


@contextlib.contextmanager
def making(final: Path, *, hint: str, durable: bool = False) -> Iterator[Making]:
    """Fill `aside` within; at the end it becomes `final`, in the place of what stands there.

    hint: what a person can do when there is no room. durable: force everything to disk before the renaming.
    """
    aside = final.with_name(f".{final.name}.{os.getpid()}")
    made = Making(aside)
    shutil.rmtree(aside, ignore_errors=True)
    try:
        aside.mkdir(parents=True)
        yield made
        if durable:
            sync_folder(aside)
        place(aside, final)
    except BaseException as error:
        shutil.rmtree(aside, ignore_errors=True)
        if (why := _REASONS.get(_number(error))) is None:
            raise
        raise NoRoom(
            f"{final} can't be written: {why}; {_size(made.whole_bytes())} to write, {_size(_free(final))} free there; "
            f"{hint}; nothing of it was left behind"
        ) from None


def place(aside: Path, final: Path) -> None:
    """Rename `aside` to `final`; what stands there (of a rolled-back learner) is moved out of the way first."""
    if final.exists():
        old = final.with_name(f".{final.name}.old.{os.getpid()}")
        shutil.rmtree(old, ignore_errors=True)
        os.rename(final, old)
        os.rename(aside, final)
        shutil.rmtree(old, ignore_errors=True)
    else:
        os.rename(aside, final)


def _number(error: BaseException) -> int:
    """The errno of what the system refused; safetensors has it in its text alone."""
    if isinstance(error, OSError):
        return error.errno or 0
    found = _OS_ERROR.search(str(error)) if type(error).__name__ == "SafetensorError" else None
    return int(found[1]) if found else 0


def _free(path: Path) -> int:
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def sync_folder(folder: Path) -> None:
    """Forces a folder's files, then its entries, to disk, so that a rename that follows is never ahead of them."""
    for path in sorted(folder.iterdir()):
        sync(path)
    sync(folder)


def sync(path: Path) -> None:
    """One file's content, or one folder's entries."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
