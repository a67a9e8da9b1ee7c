"""Showing an actor's process, and those that it starts, some of the cards that it sees."""

import os
from collections.abc import Sequence


def take_cards(cards: Sequence[int], setting: str) -> None:
    """Show these only; before CUDA is touched. `setting` names them in the error. Raises ValueError when there are
    fewer."""
    if not cards:
        return
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    named = seen.split(",") if seen else [str(card) for card in range(max(cards) + 1)]
    if max(cards) >= len(named):
        raise ValueError(f"{setting} names card {max(cards)}, but CUDA_VISIBLE_DEVICES = {seen!r} has {len(named)}")
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(named[card] for card in cards)
