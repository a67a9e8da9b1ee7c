"""Waiting for something to change, without missing a change that came between looking and waiting.

seen = changes.count
look()
await changes.wait(seen, timeout_s)   # returns at once when something changed since
"""

import asyncio


class Changes:
    """`count` moves with every change."""

    def __init__(self) -> None:
        self.count = 0
        self._event = asyncio.Event()

    def fire(self) -> None:
        self.count += 1
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, seen: int, timeout_s: float) -> None:
        """Until something changed since `count` was `seen`, or the time is over; look which it was."""
        if self.count != seen:
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        except TimeoutError:
            return
