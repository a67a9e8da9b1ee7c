"""Held-out evaluations as files of the run folder: before training and after."""

from pathlib import Path

import msgspec

from core import plain_files
from core.episodes.heldout_figures import HeldOut
from core.record.files import RecordError, replace

BEFORE, AFTER = "heldout-before.json", "heldout-after.json"


def save(heldout: HeldOut, path: Path) -> None:
    """Whole, or as it was."""
    replace(path, msgspec.json.format(msgspec.json.encode(heldout), indent=1))


def broken(run_folder: Path) -> list[str]:
    """A line for each of the two that is there and can't be read."""
    told = []
    for name in (BEFORE, AFTER):
        try:
            load(run_folder / name)
        except RecordError as error:
            told.append(f"{str(error).removeprefix(f'{run_folder}/')}: its figures and kernels are left out")
    return told


def load_if_whole(path: Path) -> HeldOut | None:
    """As `load`, None for a file that is cut or broken: `broken` tells."""
    try:
        return load(path)
    except RecordError:
        return None


def load(path: Path) -> HeldOut | None:
    """The evaluation in `path`; None when there is no such file. Raises RecordError."""
    if not path.exists():
        return None
    try:
        return msgspec.json.decode(plain_files.read(path, str(path), plain_files.ENDLESS), type=HeldOut)
    except plain_files.NotPlain as error:
        raise RecordError(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RecordError(f"{path} is no held-out evaluation: {error}") from error
