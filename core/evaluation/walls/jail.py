"""The file system that a candidate sees where namespaces are to be had: Python's installation, read-only, and no more.

Built once in the zygote, inside its own mount namespace and on memory only: no folder of the machine is needed for it
and none is left behind. Each child mounts a tmpfs of its own over the scratch folder.
"""

import os
import sys
from collections.abc import Iterable

from core.evaluation.walls import linux

MOUNT_POINT = "/proc"
"""Where the new root is put together: a folder that exists everywhere and that holds nothing to be shown inside."""


def enter_namespaces(flags: int) -> None:
    """Leave the machine's namespaces; what this process mounts from now on is its own.
    PIDs change with the next fork."""
    uid, gid = os.geteuid(), os.getegid()
    linux.unshare(flags)
    if flags & linux.CLONE_NEWUSER:
        for name, line in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(line)
    linux.mount("", "/", flags=linux.MS_REC | linux.MS_PRIVATE)


def _is_a_repository(path: str) -> bool:
    """On sys.path in a development install; what a candidate's process needs of it was imported before it was
    forked. A wheel's packages lie among others, which are needed."""
    return all(os.path.exists(os.path.join(path, name)) for name in ("core/evaluation", "pyproject.toml"))


def readable_paths() -> list[str]:
    """Folders and files that Python, torch and triton read; outermost only."""
    wanted = [sys.prefix, sys.base_prefix, sys.exec_prefix, os.path.dirname(os.path.realpath(sys.executable))]
    wanted += [
        "/usr",
        "/lib",
        "/lib64",
        "/bin",
        "/opt/rocm",
        "/etc/ld.so.cache",
        "/dev/null",
        "/dev/zero",
        "/dev/urandom",
    ]
    wanted += [path for path in sys.path if os.path.isdir(path) and not _is_a_repository(path)]
    wanted += [os.path.realpath(path) for path in wanted]  # a link shows nothing when its target is not there
    roots: list[str] = []
    for path in sorted({os.path.abspath(path) for path in wanted if path and os.path.exists(path)}):
        if not any(path == root or path.startswith(root + "/") for root in roots):
            roots.append(path)
    return roots


def scratch_folder(readable: list[str]) -> str:
    """Where a candidate may write: /tmp, unless Python itself is installed below it and would be covered."""
    taken = any(path == "/tmp" or path.startswith("/tmp/") for path in readable)
    return "/scratch" if taken else "/tmp"


def build_jail(root: str, hidden: list[str], extra: Iterable[str] = (), proc: bool = False) -> str:
    """Make `root` (an empty folder) the only file system: a small tmpfs with the readable paths bound into it.

    `hidden` folders that lie inside a readable path are covered by nothing at all. `extra` paths are shown as well: the
    device files of a GPU. After this there is no /proc; with `proc` there is an empty folder for a child to mount its.
    Answers with the folder that each candidate covers with a tmpfs of its own (`scratch_folder`).
    """
    scratch = scratch_folder(readable_paths())
    linux.mount("tmpfs", root, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "size=1m,mode=0755")
    for path in (*readable_paths(), *extra):
        target = root + path
        if os.path.islink(path):
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.symlink(os.readlink(path), target)
        elif os.path.isdir(path):
            os.makedirs(target, exist_ok=True)
            linux.bind_read_only(path, target)
        else:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            open(target, "w").close()
            linux.bind_read_only(path, target)
    for path in hidden:
        if os.path.isdir(root + path):
            linux.mount("tmpfs", root + path, "tmpfs", linux.MS_RDONLY, "size=4k")
    os.makedirs(root + scratch, exist_ok=True)
    if proc:
        os.makedirs(root + "/proc", exist_ok=True)
    linux.mount("", root, flags=linux.MS_BIND | linux.MS_REMOUNT | linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV)
    linux.pivot_root(root)
    return scratch
