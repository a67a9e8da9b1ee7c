"""The loop whose time jumps."""

import asyncio
import time

import pytest

from tests.simulation import virtual_time


def test_hours_pass_at_once_and_timers_fire_in_order():
    async def main() -> list[str]:
        done: list[str] = []

        async def after(delay_s: float, name: str) -> None:
            await asyncio.sleep(delay_s)
            done.append(name)

        await asyncio.gather(after(7200, "late"), after(0.001, "early"), after(3600, "middle"))
        assert asyncio.get_running_loop().time() == pytest.approx(7200)
        return done

    started = time.monotonic()
    assert virtual_time.run(main) == ["early", "middle", "late"]
    assert time.monotonic() - started < 3600


def test_timeouts_are_virtual_too():
    async def main() -> float:
        clock = virtual_time.LoopClock()
        before = clock.now()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 1000)
        return clock.now() - before

    assert virtual_time.run(main) == pytest.approx(1000)


def test_a_run_that_can_never_go_on_says_who_waits():
    async def main() -> None:
        asyncio.current_task().set_name("forlorn")  # type: ignore[union-attr]
        await asyncio.Event().wait()

    with pytest.raises(virtual_time.Stuck, match="forlorn"):
        virtual_time.run(main)


def test_a_run_that_never_ends_is_stopped():
    async def main() -> None:
        await asyncio.sleep(1e9)

    with pytest.raises(virtual_time.TooLong, match="3600"):
        virtual_time.run(main, limit_s=3600)
