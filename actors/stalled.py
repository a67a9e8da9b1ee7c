"""The fact `stalled`: who waited for what, for how long. A wait that goes beyond its deadline is told once, and again
rarely while it lasts; `kernelmill top` and the report show it.

    async with watched(bus, lambda: "4 complete groups", after_s=900): ...    a wait that goes on
    await tell(bus, f"{name} waited 120 s for ...")                           a deadline that passed
    await tell_what_ended(bus, error)                                         one that ends the actor
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator

import structlog

from bus import facts
from bus.broker import BusError, NoConnection
from bus.run_bus import RunBus

log = structlog.get_logger()
AGAIN_S = 1800.0
_TELL_S = 5.0


async def tell(bus: RunBus, text: str, trace: str = "") -> None:
    """Whoever waits has trouble enough: a broker that is away is none of it."""
    log.warning("stalled", why=text, fact=facts.STALLED, trace=trace)
    try:
        async with asyncio.timeout(_TELL_S):
            await bus.fact(facts.STALLED, trace=trace, text=text)
    except (TimeoutError, BusError) as error:
        log.info("no answer, going on without", why=str(error))


@contextlib.asynccontextmanager
async def watched(
    bus: RunBus, what: Callable[[], str], *, after_s: float, again_s: float = AGAIN_S
) -> AsyncIterator[None]:
    """Around a wait. `what` says at that moment what is waited for."""
    started = bus.clock.monotonic()

    async def watch() -> None:
        pause_s = after_s
        while True:
            await asyncio.sleep(pause_s)
            await tell(bus, f"{bus.actor} has waited {bus.clock.monotonic() - started:.0f} s for {what()}")
            pause_s = again_s

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def tell_what_ended(bus: RunBus, error: BaseException) -> None:
    """When an actor ends by a deadline that passed, whatever that became on its way."""
    passed = next((one for one in _causes(error) if isinstance(one, TimeoutError) and str(one)), None)
    if passed is not None and not isinstance(passed, NoConnection):
        text = str(passed)
        await tell(bus, text if bus.actor in text else f"{bus.actor}: {text}")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        if isinstance(error, BaseExceptionGroup):
            for one in error.exceptions:
                yield from _causes(one)
        error = error.__cause__
