"""Which processes hold deliveries, in a bucket that does not expire: a beat that nobody saw in time is gone, and with
it what its process held.

A key stands from the first delivery that a process takes until it holds none, or until a reaper has handed on what it
held. It is written before the beat that says the same.
"""

import asyncio

from bus import codec
from bus.broker import Broker
from bus.messages import Beat, Held


def process(beat: Beat) -> str:
    """One key for every process of an actor."""
    return f"{beat.actor}.{beat.life or beat.pid}"


class Holders:
    def __init__(self, broker: Broker, bucket: str) -> None:
        self._broker = broker
        self._bucket = bucket
        self._told: tuple[str, tuple[Held, ...]] = ("", ())

    async def tell(self, beat: Beat) -> None:
        """Of this process; writes when something changed."""
        now = (process(beat), beat.held)
        if now == self._told or not (beat.held or self._told[1]):
            return
        if beat.held:
            await self._broker.put(self._bucket, now[0], codec.encode(beat))
        else:
            await self._broker.delete(self._bucket, now[0])
        self._told = now

    async def all(self) -> list[Beat]:
        """Of each process that holds something, or did when it died, the beat that told it. Raises TimeoutError."""
        keys = await self._broker.keys(self._bucket)
        entries = await asyncio.gather(*(self._broker.get(self._bucket, key) for key in keys))
        found = []
        for entry in entries:
            if entry is not None and entry.value is not None:
                try:
                    found.append(codec.decode(entry.value, Beat))
                except codec.Refused:
                    continue  # of another version: its work comes back after ack_wait
        return found

    async def forget(self, beat: Beat) -> None:
        await self._broker.delete(self._bucket, process(beat))
