"""Waiting for work that goes on where the one who waits is cancelled."""

import asyncio
from typing import TypeVar

T = TypeVar("T")


async def to_the_end(work: asyncio.Future[T]) -> T:
    """What `work` gives or raises. A caller that is cancelled leaves it running; what it raises then is nobody's to
    hear, where asyncio would print it as an exception that was never retrieved."""
    work.add_done_callback(_heard)
    return await asyncio.shield(work)


def _heard(work: asyncio.Future[T]) -> None:
    if not work.cancelled():
        work.exception()
