"""Which side of the train/held-out split a task is on.

The side is a pure function of the task's operator structure, so tasks that differ only in names, constants or sizes
are always on the same side: in every source, every run and every version of the generator.
"""

from typing import Literal

from core.identity import digest

Side = Literal["train", "heldout"]
SIDES: tuple[Side, ...] = ("train", "heldout")
HELDOUT_PERCENT = 15


def side_of(structure: str) -> Side:
    """Side of a structure as `structure_of` writes it; about `HELDOUT_PERCENT` of all structures are held out."""
    if not structure:
        raise ValueError("a task without a structure has no side: got '', wanted the text that structure_of makes")
    return "heldout" if int(digest("split", structure, size=6), 16) % 100 < HELDOUT_PERCENT else "train"
