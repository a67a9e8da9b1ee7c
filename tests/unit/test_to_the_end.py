"""Work that outlives the one who waits for it: its answer, its error, and nobody left to hear that."""

import asyncio
import gc

import pytest
from structlog.testing import capture_logs

from core.to_the_end import to_the_end


class Broken(Exception):
    """Of the work."""


async def _work(go: asyncio.Event, error: bool) -> str:
    await go.wait()
    if error:
        raise Broken
    return "done"


def test_who_waits_gets_answer_and_error():
    async def play():
        go = asyncio.Event()
        go.set()
        assert await to_the_end(asyncio.ensure_future(_work(go, False))) == "done"
        with pytest.raises(Broken):
            await to_the_end(asyncio.ensure_future(_work(go, True)))

    asyncio.run(play())


@pytest.mark.parametrize("waiting", [1, 3])
@pytest.mark.parametrize("error", [False, True])
def test_work_goes_on_where_those_who_waited_are_cancelled_and_its_error_is_a_line(error, waiting):
    printed = []

    async def play():
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: printed.append(context))
        go = asyncio.Event()
        work = asyncio.ensure_future(_work(go, error))
        callers = [asyncio.create_task(to_the_end(work)) for _ in range(waiting)]
        await asyncio.sleep(0)
        for caller in callers:
            caller.cancel()
        assert all(
            isinstance(found, asyncio.CancelledError)
            for found in await asyncio.gather(*callers, return_exceptions=True)
        )
        assert not work.done()
        go.set()
        await asyncio.wait([work])
        assert (work._exception is not None) == error  # `exception()` would hear it
        del work, callers
        gc.collect()
        await asyncio.sleep(0)

    with capture_logs() as logs:
        asyncio.run(play())
    assert printed == []
    assert {line["why"] for line in logs} == ({"Broken: "} if error else set())


def test_work_that_is_cancelled_itself_says_so():
    async def play():
        work = asyncio.ensure_future(asyncio.sleep(30))
        caller = asyncio.create_task(to_the_end(work))
        await asyncio.sleep(0)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller

    asyncio.run(play())
