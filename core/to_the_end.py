"""Waiting for work that goes on where the one who waits is cancelled."""

import asyncio
from typing import TypeVar

import structlog

T = TypeVar("T")
log = structlog.get_logger()


async def to_the_end(work: asyncio.Future[T]) -> T:
    """What `work` gives or raises. A caller that is cancelled leaves it running; what it raises then is a line in the
    log, where asyncio would print a traceback as of an exception that was never retrieved."""
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        if not work.done():
            work.add_done_callback(_told)
        raise


def _told(work: asyncio.Future[T]) -> None:
    if not work.cancelled() and (error := work.exception()) is not None:
        log.info("work failed that nobody waited for any more", why=f"{type(error).__name__}: {error}"[:300])
