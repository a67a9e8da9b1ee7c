"""The packages that the project computes with, as Python finds them here: which version, from where, and is it wanted.

A folder of PYTHONPATH may hide what is installed behind a package that is broken or of another version. What a person
reads then names that package, where it came from and what to do, whichever import broke of it.
"""

import functools
import importlib
import importlib.metadata
import importlib.util
import os
import sys
import tomllib
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from runners.usage import UsageError

COMPUTE = ("numpy", "torch", "triton", "transformers")
"""In the order in which they import each other: the first one that is broken breaks the others."""
_ROOT = Path(__file__).parents[1]
_OURS = {"actors", "bus", "configs", "core", "runners", "tests", "__main__"}


class Found(NamedTuple):
    name: str
    version: str
    """Empty where it does not say one."""
    place: str
    """Its folder, or its file; empty where there is none."""
    wanted: Any
    """A packaging.specifiers.SpecifierSet; an empty one where any version will do."""

    @property
    def fits(self) -> bool:
        from packaging.version import InvalidVersion, Version

        try:
            return self.wanted.contains(Version(self.version), prereleases=True)
        except InvalidVersion:
            return False

    def told(self) -> str:
        version = self.version or "of no stated version"
        return (
            f"{self.name} {version} from {self.place}{f', wanted {range_of(self.name)}' if range_of(self.name) else ''}"
        )

    def advice(self) -> str:
        above = os.path.dirname(self.place)
        places = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        if self.place and any(place and os.path.abspath(place) == above for place in places):
            return f"take {above} off PYTHONPATH, or install into it what is wanted"
        again = "--force-reinstall " if self.place else ""
        return f"pip install {again}'{self.name}{range_of(self.name)}', or `make setup`"


class Trouble(NamedTuple):
    """A package that can't be imported."""

    name: str
    """Which one is to blame: of torch's import, it may be numpy."""
    what: str
    advice: str

    @property
    def line(self) -> str:
        return f"{self.what}: {self.advice}"


def range_of(name: str) -> str:
    """The wanted versions as pyproject.toml writes them; empty where any will do."""
    return ",".join(sorted(map(str, wanted().get(name, ())), reverse=True))


@functools.cache
def wanted() -> dict[str, Any]:
    """Distribution -> the versions of it that this code is made for: of the pyproject.toml beside the code (a checkout,
    installed or not, whose metadata may be older), else of the installed distribution."""
    from packaging.requirements import Requirement

    try:
        project = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        lines = project["dependencies"] if project["name"] == "kernelmill" else None
    except (OSError, KeyError, tomllib.TOMLDecodeError):
        lines = None
    if lines is None:
        try:
            lines = importlib.metadata.requires("kernelmill") or []
        except importlib.metadata.PackageNotFoundError:
            lines = []
    asked = [Requirement(line) for line in lines]
    return {one.name: one.specifier for one in asked if one.marker is None or one.marker.evaluate({"extra": ""})}


def found(name: str, module: ModuleType | None = None) -> Found:
    """What an import would give, without importing it; of `module` or what is imported already, its own words.

    Of a package that is not where its distribution was installed, the version is known once it is imported."""
    from packaging.specifiers import SpecifierSet

    module = module or sys.modules.get(name)
    origin = getattr(module, "__file__", None) or _origin(name)
    place = os.path.dirname(origin) if os.path.basename(origin) == "__init__.py" else origin
    version = getattr(module, "__version__", "")
    if not version and origin and _installed(name, origin):
        version = importlib.metadata.version(name)
    return Found(name, str(version), place, wanted().get(name, SpecifierSet()))


def check() -> list[Found]:
    """Before a start: raises UsageError for a package that can't be imported, and gives those of versions that are not
    wanted. Costs no import of torch where all are what was installed."""
    odd = []
    for name in COMPUTE:
        if name == "numpy" or not found(name).version:  # the others take seconds
            _imported(name)
        if not found(name).fits:
            odd.append(found(name))
    if odd:  # perhaps it works all the same
        for name in COMPUTE:
            _imported(name)
    return odd


@functools.cache
def trouble(name: str) -> Trouble | None:
    """Why it can't be imported, None where it can. Tried once: of a package that broke half-way, a second try can end
    the process."""
    try:
        importlib.import_module(name)
    except Exception as error:
        return explained(error) or Trouble(name, f"{name} can't be imported ({_words(error)})", found(name).advice())
    return None


def explained(error: BaseException) -> Trouble | None:
    """What to say of the package whose import failed with `error`; None where that is not what happened."""
    name, module = _culprit(error)
    if not name:
        return None
    it = found(name, module)
    if not it.place:
        return Trouble(name, f"{name} is not installed ({_words(error)})", it.advice())
    others = [found(other) for other in COMPUTE if other in sys.modules and other != name]
    also = "".join(f"; also {other.told()}" for other in others if not other.fits)
    return Trouble(name, f"{name} can't be used ({_words(error)}): {it.told()}{also}", it.advice())


def _imported(name: str) -> None:
    if broken := trouble(name):
        raise UsageError(broken.line)


def _culprit(error: BaseException) -> tuple[str, ModuleType | None]:
    """The package that is to blame: the one that lacks what was asked of it, else the innermost whose import broke."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__) if frame.f_code.co_name == "<module>"]
    tops = [str(frame.f_globals.get("__name__")).partition(".")[0] for frame in frames]
    importing = [top for top in tops if _foreign(top)]
    blamed: Any = None
    if isinstance(error, AttributeError) and isinstance(error.obj, ModuleType):
        blamed, module = error.obj.__name__, sys.modules.get(error.obj.__name__.partition(".")[0], error.obj)
    elif isinstance(error, ImportError) and error.name:
        blamed, module = error.name, None
    top = str(blamed or "").partition(".")[0]
    if top and _foreign(top) and (importing or isinstance(error, ImportError) or not found(top).fits):
        return top, module
    if isinstance(error, SyntaxError) and error.filename:  # no frame of that file was ever there
        importing += [name for name in COMPUTE if (place := found(name).place) and error.filename.startswith(place)]
    return (importing[-1], None) if importing else ("", None)


def _foreign(top: str) -> bool:
    return top not in _OURS and top not in sys.stdlib_module_names and (top in wanted() or top in _distributions())


@functools.cache
def _distributions() -> frozenset[str]:
    return frozenset(importlib.metadata.packages_distributions())


def _origin(name: str) -> str:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return ""
    return (spec.origin or "") if spec is not None else ""


def _installed(name: str, origin: str) -> bool:
    """Whether `origin` is the file of the distribution of that name."""
    try:
        file = importlib.metadata.distribution(name).locate_file(f"{name}/__init__.py")
    except importlib.metadata.PackageNotFoundError:
        return False
    return os.path.realpath(str(file)) == os.path.realpath(origin)


def _words(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
