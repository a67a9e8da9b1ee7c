"""The folder that a candidate writes to where there are no namespaces: made, watched, emptied and removed from outside.

Invariants: what a candidate left is taken apart without following a link, without recursion and with three open
descriptors, however deep or odd it is; trouble with the machine's own disk is OSError with a text that says what to do.
"""

import contextlib
import errno
import fcntl
import os
import stat
import tempfile
import time

PREFIX = "kernelmill-judge-"
_DEEPEST = 64
_FRESH_S = 60.0
"""Another judge may be between making its folder and taking the lock."""


def make(uid: int | None) -> tuple[str, int]:
    """A new folder that only its owner (and `uid`) can enter, and an open descriptor that marks it as in use.

    Raises OSError when there is nowhere to make one.
    """
    remove_stale()
    try:
        folder = tempfile.mkdtemp(prefix=PREFIX)
    except OSError as error:
        text = f"no temporary folder can be made for candidates ({error}): set TMPDIR to a folder that can be written"
        raise OSError(error.errno, text) from error
    if uid is not None:
        os.chmod(folder, 0o711)
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return folder, lock


def renew(outer: str, uid: int | None, room_mb: int) -> str:
    """An empty folder below `outer` for the next child, as the user `uid`; what the last one left is removed.

    Raises OSError when the disk has less than `room_mb` left: a candidate must not fail for that.
    """
    if not os.path.isdir(outer):
        raise OSError(errno.ENOENT, f"the candidates' folder {outer} was removed while the judge runs")
    for name in os.listdir(outer):
        remove(os.path.join(outer, name))
    if not room(outer, room_mb):
        where = os.path.dirname(outer)
        text = f"the disk of {where} is full: candidates need {room_mb} MB there; free some, or set TMPDIR"
        raise OSError(errno.ENOSPC, text)
    folder = os.path.join(outer, "room")
    os.mkdir(folder, 0o700)
    if uid is not None:
        os.chown(folder, uid, uid)
    return folder


def room(folder: str, room_mb: int = 1) -> bool:
    """Whether the file system of `folder` has that much left, and a file."""
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize >= room_mb * 2**20 and not (disk.f_files and not disk.f_favail)


def overfull(folder: str, most_mb: int, most_files: int) -> bool:
    """Whether a running child keeps more than it may there, or in folders too deep to count."""
    pending = [(folder, 0)]
    blocks = files = 0
    while pending:
        path, depth = pending.pop()
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    files += 1
                    if files > most_files or depth > _DEEPEST:
                        return True
                    if entry.is_dir(follow_symlinks=False):
                        pending.append((entry.path, depth + 1))
                    else:
                        blocks += entry.stat(follow_symlinks=False).st_blocks
        except OSError as error:  # gone in the meantime; else closed to us or too deep, which is made on purpose
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                return True
    return blocks * 512 > most_mb * 2**20


def remove(path: str) -> None:
    """Remove a file or a folder with all that is in it. Its processes must be gone."""
    if os.path.islink(path) or not os.path.isdir(path):
        os.unlink(path)
        return
    os.chmod(path, 0o700)
    top = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    moved = 0
    try:
        while names := os.listdir(top):
            for name in names:
                if not _is_folder(name, top):
                    os.unlink(name, dir_fd=top)
                    continue
                os.chmod(name, 0o700, dir_fd=top)
                inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=top)
                try:
                    for below in os.listdir(inner):
                        if _is_folder(below, inner):
                            moved += 1
                            os.chmod(below, 0o700, dir_fd=inner)  # a folder that moves is written to
                            os.rename(below, f"{moved}-{os.urandom(8).hex()}", src_dir_fd=inner, dst_dir_fd=top)
                        else:
                            os.unlink(below, dir_fd=inner)
                finally:
                    os.close(inner)
                os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)
    os.rmdir(path)


def _is_folder(name: str, parent: int) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)


def remove_stale() -> None:
    """Folders of owners that were killed before they could tidy up: nobody holds their lock, of whatever container."""
    try:
        names = os.listdir(tempfile.gettempdir())
    except OSError:
        return  # `make` says what is wrong with it
    for name in names:
        path = os.path.join(tempfile.gettempdir(), name)
        if not name.startswith(PREFIX) or not os.path.isdir(path) or os.path.islink(path):
            continue
        with contextlib.suppress(OSError):  # of another user, or removed by another judge at this moment
            age_s = time.time() - os.lstat(path).st_ctime
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if age_s > _FRESH_S:
                    remove(path)
            finally:
                os.close(lock)
