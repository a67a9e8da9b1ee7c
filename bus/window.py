"""How much one connection may have published and not yet confirmed: bounded in messages and in bytes.

Waiting is first come, first served, so that a large message is not starved by small ones. A message larger than the
whole window goes when it is alone.
"""

import asyncio
from collections import deque


class Window:
    """`async with asyncio.timeout(...): await window.enter(n)` … `window.leave(n)`."""

    def __init__(self, messages: int, nbytes: int) -> None:
        self._messages = messages
        self._bytes = nbytes
        self._open_messages = 0
        self._open_bytes = 0
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def enter(self, nbytes: int) -> None:
        if not self._queue and self._fits(nbytes):
            self._take(nbytes)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append((nbytes, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave(nbytes)
            raise

    def leave(self, nbytes: int) -> None:
        self._open_messages -= 1
        self._open_bytes -= nbytes
        while self._queue:
            wanted, turn = self._queue[0]
            if turn.done():  # cancelled
                self._queue.popleft()
            elif self._fits(wanted):
                self._queue.popleft()
                self._take(wanted)
                turn.set_result(None)
            else:
                break

    def _fits(self, nbytes: int) -> bool:
        if not self._open_messages:
            return True
        return self._open_messages < self._messages and self._open_bytes + nbytes <= self._bytes

    def _take(self, nbytes: int) -> None:
        self._open_messages += 1
        self._open_bytes += nbytes
