"""Showing an actor's process, and those that it starts, some of the cards that it sees."""

import os
from collections.abc import Sequence

from core.evaluation.walls import gpu as gpu_walls

ORDER = "CUDA_DEVICE_ORDER"


def take_cards(cards: Sequence[int], setting: str) -> None:
    """Show these only; before CUDA is touched. Raises ValueError as `names_of` does."""
    if not cards:
        return
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(names_of(cards, setting))
    os.environ.setdefault(ORDER, "PCI_BUS_ID")  # judges number cards so


def names_of(cards: Sequence[int], setting: str) -> list[str]:
    """These of the cards that this process sees, as CUDA_VISIBLE_DEVICES names them; all for none. `setting` names them
    in the error. Raises ValueError when there are fewer."""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not cards:
        return gpu_walls.shown()
    named = gpu_walls.shown() if seen is not None else [str(card) for card in range(max(cards) + 1)]
    if max(cards) >= len(named):
        raise ValueError(f"{setting} names card {max(cards)}, but CUDA_VISIBLE_DEVICES = {seen!r} has {len(named)}")
    return [named[card] for card in cards]


def number_cards() -> None:
    """Cards that are shown by their UUIDs are shown by their numbers, where all of them are known: for a library that
    takes these words for numbers."""
    named = gpu_walls.shown()
    known = gpu_walls.cards()
    found = [gpu_walls.card(name) for name in named]
    if all(name.isdigit() for name in named) or not all(card in known for card in found):
        return
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(str(known.index(card)) for card in found if card is not None)
    os.environ[ORDER] = "PCI_BUS_ID"
