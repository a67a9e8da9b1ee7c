"""What baselines took, remembered on disk: one small JSON file for each, named by the digest of all it depends on.

    cache = BaselineCache(folder)            "" is KERNELMILL_BASELINES, else below the user's cache folder
    cache.get(key) -> Baseline | None        cache.put(key, baseline)

`key` is plain data (gpu.baseline.key): source, sizes, precision flags, mode, GPU, driver, versions, protocol. A file is
written whole under another name and then moved, so that readers and writers in several processes see all of it or
nothing. What does not read back as it was written, or stands for another key, counts as absent, with one line in the
log; a folder that can't be written costs the memory, not the verdict. No torch here.
"""

import logging
import os
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from core.identity import digest_json

NOISY = "no quiet GPU"
"""How a trouble begins that is the moment's."""
FOLDER_VARIABLE = "KERNELMILL_BASELINES"
_log = logging.getLogger(__name__)


class Baseline(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One baseline of one task on one GPU."""

    median_ms: float
    """0 where it could not be measured."""
    eager_ms: float
    """Eager's median in the same minute: GPUs drift, the ratio of the two does not."""
    calls: int
    clock: str
    """`events` or `wall` (timing.agreed)."""
    trouble: str = ""
    """Why there is no time: it does not compile, say. Not tried again until something of the key changes."""

    def __post_init__(self) -> None:
        if not self.trouble and not (0 < self.median_ms < 1e9 and 0 < self.eager_ms < 1e9):
            raise ValueError(f"median_ms = {self.median_ms}, eager_ms = {self.eager_ms}: wanted times above 0")

    @property
    def gain(self) -> float:
        """How many times as fast as eager; 0 where it could not be measured."""
        return self.eager_ms / self.median_ms if self.median_ms > 0 else 0.0


class _Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    key: dict[str, Any]
    baseline: Baseline


def default_folder() -> Path:
    """KERNELMILL_BASELINES, else `kernelmill/baselines` in XDG_CACHE_HOME or ~/.cache."""
    chosen = os.environ.get(FOLDER_VARIABLE)
    if chosen:
        return Path(chosen)
    cache = os.environ.get("XDG_CACHE_HOME", "")
    home = Path(cache) if os.path.isabs(cache) else Path.home() / ".cache"
    return home / "kernelmill" / "baselines"


class BaselineCache:
    """A folder of entries; any number of processes may use it at once."""

    def __init__(self, folder: str = "") -> None:
        self.folder = Path(folder) if folder else default_folder()
        self._complained: set[str] = set()

    def path(self, key: dict[str, Any]) -> Path:
        return self.folder / f"{digest_json(key)}.json"

    def get(self, key: dict[str, Any]) -> Baseline | None:
        """What stands for exactly this key."""
        path = self.path(key)
        try:
            entry = msgspec.json.decode(path.read_bytes(), type=_Entry)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError, ValueError) as error:
            self._complain(path, f"is not read: {error}")
            return None
        if msgspec.json.encode(entry.key, order="sorted") != msgspec.json.encode(key, order="sorted"):
            self._complain(path, "stands for another key")
            return None
        return entry.baseline

    def put(self, key: dict[str, Any], baseline: Baseline) -> None:
        """Write it, over what was there."""
        path = self.path(key)
        body = msgspec.json.format(msgspec.json.encode(_Entry(key=key, baseline=baseline)))
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            descriptor, other = tempfile.mkstemp(dir=self.folder, prefix=".", suffix=".new")
            with os.fdopen(descriptor, "wb") as file:
                file.write(body)
            os.replace(other, path)
        except OSError as error:
            self._complain(path, f"is not written: {error}")

    def _complain(self, path: Path, text: str) -> None:
        if path.name not in self._complained:
            self._complained.add(path.name)
            _log.warning("baseline %s %s; it is measured again", path, text)
