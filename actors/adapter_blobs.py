"""Adapters over the bus: the learner puts a version's file there, a generator takes it to its own host.

    learner    adapter:/run/.../v000012.adapter ─▶ pieces in BLOBS ─▶ policy.source adapter-blob:81/i1-v12
    generator  policy.source ─▶ pieces ─▶ a file of its own ─▶ adapter:/tmp/.../i1-v12.adapter for its engine

The newest `keep` versions stay on the bus. A generator that was slower takes the version's folder, as with any source.
"""

import asyncio
import tempfile
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bus.run_bus import RunBus

SCHEME = "adapter-blob:"


class AdapterBlobs:
    """The learner's side."""

    def __init__(self, bus: RunBus, *, keep: int) -> None:
        self._bus = bus
        self._standing: deque[int] = deque(maxlen=keep)

    async def put(self, source: str, name: str) -> str:
        """`source` names the file (`adapter:PATH`); answers with what generators read, in the policy."""
        data = await asyncio.to_thread(Path(source.removeprefix("adapter:")).read_bytes)
        first = await self._bus.put_blob(name, data)
        self._standing.append(first)
        await self._bus.trim_blobs(self._standing[0])
        return f"{SCHEME}{first}/{name}"


@asynccontextmanager
async def local_source(bus: RunBus, source: str, timeout_s: float) -> AsyncIterator[str]:
    """The source as an engine reads it; a blob is a file of this host meanwhile. Raises FileNotFoundError when the blob
    is gone, TimeoutError."""
    if not source.startswith(SCHEME):
        yield source
        return
    first, _, name = source.removeprefix(SCHEME).partition("/")
    data = await bus.blob(name, int(first), timeout_s)
    with tempfile.TemporaryDirectory(prefix="adapter-") as folder:
        path = Path(folder) / f"{name}.adapter"
        await asyncio.to_thread(path.write_bytes, data)
        yield f"adapter:{path}"
