"""The bound on what is published and not yet confirmed."""

import asyncio

import pytest

from bus.window import Window
from tests.simulation import virtual_time


def test_it_bounds_messages_and_bytes_in_order():
    async def main() -> None:
        window, entered = Window(messages=2, nbytes=100), []

        async def go(name: str, nbytes: int) -> None:
            await window.enter(nbytes)
            entered.append(name)

        tasks = [asyncio.create_task(go(*what)) for what in (("a", 60), ("b", 60), ("c", 1), ("d", 1))]
        await asyncio.sleep(0)
        assert entered == ["a"]  # c would fit, but b came first
        window.leave(60)
        await asyncio.sleep(0)
        assert entered == ["a", "b", "c"]
        window.leave(1)
        await asyncio.gather(*tasks)
        assert entered == ["a", "b", "c", "d"]

    virtual_time.run(main)


def test_a_message_larger_than_the_window_goes_alone():
    async def main() -> None:
        window = Window(messages=2, nbytes=100)
        await window.enter(1000)
        other = asyncio.create_task(window.enter(1))
        await asyncio.sleep(0)
        assert not other.done()
        window.leave(1000)
        await other

    virtual_time.run(main)


@pytest.mark.parametrize("granted", [False, True])
def test_one_who_is_cancelled_leaves_no_hole(granted):
    async def main() -> None:
        window = Window(messages=1, nbytes=100)
        await window.enter(1)
        leaver, stayer = (asyncio.create_task(window.enter(1)) for _ in range(2))
        await asyncio.sleep(0)
        if granted:
            window.leave(1)
        leaver.cancel()
        if not granted:
            window.leave(1)
        await asyncio.wait_for(stayer, 1)
        assert leaver.cancelled() or (await asyncio.gather(leaver, return_exceptions=True))

    virtual_time.run(main)
