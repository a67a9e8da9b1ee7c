"""One engine for training episodes and held-out evaluation: a pinned version beside updates.

    Lanes(engine)           is the engine that training uses; its load_weights waits while a version is pinned
    async with lanes.pinned(hold_s) as view:   an engine whose every completion is of one version

Requests of both lanes run side by side in the same steps; nobody is aborted for the other. An engine holds one set of
weights, so a pin holds the next swap back, for at most `hold_s` after the swap was asked for. When that passes the
weights change, and the view's requests from then on, and those that the change caught, raise PinLost: an evaluation
is of one version or does not stand. Training samples go on with the old version meanwhile, which admission bounds.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

from core.generation.engine import Completion, Engine, Sampling
from core.present import Present


class PinLost(RuntimeError):
    """The pinned version was replaced before its evaluation was over."""


class Lanes:
    """See `core.generation.engine.Engine`, which this is as well."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._pins: dict[_Pinned, float] = {}
        self._free = asyncio.Event()
        self._free.set()
        self._swaps = 0
        self._inside = Present()
        self._settled = asyncio.Event()
        """No swap waits or is under way."""
        self._settled.set()
        self.held_back_s = 0.0
        """Seconds that swaps waited for pins."""

    @property
    def version(self) -> int:
        return self.engine.version

    @property
    def context_tokens(self) -> int:
        return self.engine.context_tokens

    async def start(self) -> None:
        await self.engine.start()

    async def stop(self) -> None:
        await self.engine.stop()

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
        with self._inside:
            return await self.engine.generate(prompt_ids, sampling)

    async def load_weights(self, source: str, version: int, fingerprint: str = "") -> str:
        """Waits for pins, at most the longest `hold_s` among them."""
        self._swaps += 1
        self._settled.clear()
        try:
            await self._wait_for_pins()
            for pin in list(self._pins):
                pin.lose(version)
            return await self.engine.load_weights(source, version, fingerprint)
        finally:
            self._swaps -= 1
            if not self._swaps:
                self._settled.set()

    def gauges(self) -> dict[str, float]:
        inside_s = self._inside.seconds
        return {
            **self.engine.gauges(),
            "sequence_s": inside_s,
            "pins": float(len(self._pins)),
            "held_back_s": self.held_back_s,
        }

    @contextlib.asynccontextmanager
    async def pinned(self, hold_s: float) -> AsyncIterator["Engine"]:
        """A view of the engine at its present version, or the one that is about to come. `hold_s` bounds how long a
        swap waits for this pin."""
        if hold_s < 0:
            raise ValueError(f"hold_s must be at least 0, got {hold_s}")
        while not self._settled.is_set():
            await self._settled.wait()
        pin = _Pinned(self)
        self._pins[pin] = hold_s
        self._free.clear()
        try:
            yield pin
        finally:
            self._pins.pop(pin, None)
            if not self._pins:
                self._free.set()

    async def _wait_for_pins(self) -> None:
        if not self._pins:
            return
        clock = asyncio.get_running_loop().time
        began = clock()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(self._pins.values())):
                await self._free.wait()
        self.held_back_s += clock() - began


class _Pinned:
    """The engine at one version."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self._version = lanes.version
        self._lost: int | None = None

    def lose(self, version: int) -> None:
        self._lost = version

    @property
    def version(self) -> int:
        return self._version

    @property
    def context_tokens(self) -> int:
        return self._lanes.context_tokens

    async def start(self) -> None:
        raise RuntimeError("a pinned view is not started: its engine runs")

    async def stop(self) -> None:
        raise RuntimeError("a pinned view is not stopped: leave its context")

    async def load_weights(self, source: str, version: int, fingerprint: str = "") -> str:
        raise RuntimeError(f"version {self._version} is pinned: load weights through the engine")

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
        """Raises PinLost when the version was replaced before the completion was whole."""
        self._check()
        completion = await self._lanes.generate(prompt_ids, sampling)
        if (completion.versions != self._version).any():
            raise PinLost(self._reason(int(completion.versions[-1])))
        return completion

    def gauges(self) -> dict[str, float]:
        return self._lanes.gauges()

    def _check(self) -> None:
        if self._lost is not None:
            raise PinLost(self._reason(self._lost))

    def _reason(self, version: int) -> str:
        return f"version {self._version} was pinned, but version {version} has replaced it: evaluate the newer one"
