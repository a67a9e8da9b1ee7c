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


def load(path: Path) -> HeldOut | None:
    """The evaluation in `path`; None when there is no such file. Raises RecordError."""
    if not path.exists():
        return None
    try:
        return msgspec.json.decode(plain_files.read(path, str(path), plain_files.ENDLESS), type=HeldOut)
    except plain_files.NotPlain as error:
        raise RecordError(str(error)) from None
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise RecordError(f"{path} is no held-out evaluation: {error}") from error
