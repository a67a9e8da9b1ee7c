"""From where a confined process imports: its own installation and, of the judge's path, folders of packages.

Judge's processes run `python -I`, which leaves out PYTHONPATH and the user's packages; an environment module of a
cluster puts torch and numpy there. So these are handed on, in the order of the trusted side, which imports from them
itself. What else is on its path is not: the working folder, a project's folder, an archive. Candidates may read what is
handed on, but not write to it: it is shown read-only, and one that every user may write to is left out.

Where both sides still have other versions of what they compute with, the judge does not start (`differences`).
"""

import glob
import importlib
import importlib.util
import json
import os
import stat
import subprocess
import sys

_NAMES = ("site-packages", "dist-packages")
_COMPUTE = ("torch", "triton", "numpy")
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def handed_on() -> list[str]:
    """Folders of this process's sys.path that confined processes import from as well, should Python's own not be
    among them already."""
    return [path for path in _order() if _holds_packages(path) and not _open_to_all(path) and path != os.getcwd()]


def python(code: str) -> list[str]:
    """The words of an isolated interpreter that runs `code` (one line of statements) with that path; words behind them
    are its sys.argv[1:]."""
    prelude = (
        f"import sys; order, extra = {_order()!r}, {handed_on()!r}; "
        "path = [p for p in order if p in extra or p in sys.path]; "
        "sys.path[:] = [*path, *(p for p in sys.path if p not in path)]; del order, extra, path; "
    )
    return [sys.executable, "-I", "-c", prelude + code]


def script() -> list[str]:
    """The same for a script, whose path is the next word."""
    return python("import runpy; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')")


def asked() -> dict[str, str]:
    """`loaded` of an isolated interpreter that is started for it; seconds. Raises subprocess.CalledProcessError, with
    what it printed, where these packages can't be imported there."""
    code = (
        f"sys.path.insert(0, {_ROOT!r}); import json, {', '.join(_COMPUTE)}; "
        "from core.evaluation import import_path; print(json.dumps(import_path.loaded()))"
    )
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
    done = subprocess.run(python(code), env=environment, cwd="/", capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def loaded() -> dict[str, str]:
    """Name -> "version, file" of what is imported here of the packages that judging computes with."""
    return {name: _told(name) for name in _COMPUTE if name in sys.modules}


def differences(there: dict[str, str]) -> str:
    """One line about the packages of which a confined process has another version (`loaded` there) than this one; empty
    where there is none. The same version from another folder is none."""
    found = []
    for name, told in there.items():
        spec = importlib.util.find_spec(name)
        if spec is not None and told.partition(", ")[2] == spec.origin:
            continue
        if spec is not None:
            importlib.import_module(name)
        own = _told(name) if spec is not None else "none"
        if own.partition(", ")[0] != told.partition(", ")[0]:
            found.append(f"{name}: {told} there, {own} here")
    if not found:
        return ""
    return (
        f"confined processes have other packages than the judge ({'; '.join(found)}): install one version into the "
        f"environment of {sys.executable}, or take the folder of the other one off PYTHONPATH"
    )


def _told(name: str) -> str:
    module = sys.modules[name]
    return f"{getattr(module, '__version__', '?')}, {getattr(module, '__file__', None)}"


def _order() -> list[str]:
    return list(dict.fromkeys(os.path.abspath(path) for path in sys.path if path))


def _holds_packages(path: str) -> bool:
    return os.path.isdir(path) and (
        os.path.basename(path) in _NAMES or bool(glob.glob(os.path.join(glob.escape(path), "*.dist-info")))
    )


def _open_to_all(path: str) -> bool:
    """Whether any user can write to it, or put another folder in its place."""
    path = os.path.realpath(path)
    if os.stat(path).st_mode & stat.S_IWOTH:
        return True
    while (above := os.path.dirname(path)) != path:
        path = above
        mode = os.stat(path).st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            return True
    return False
