"""What a supervised process said last is why it died."""

import asyncio

import pytest

from runners.processes import Child

GROUP = """
import asyncio
async def fail(): raise {error}
async def main():
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task({inner})
asyncio.run(main())
"""
NESTED = GROUP.replace("run(main())", "run(outer())").replace(
    "asyncio.run",
    """async def outer():
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(main())
asyncio.run""",
)


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("raise ValueError('plain')", "ValueError: plain"),
        (GROUP.format(error="ValueError('in a group')", inner="fail()"), "ValueError: in a group"),
        (NESTED.format(error="ValueError('in two')", inner="fail()"), "ValueError: in two"),
        ("print('a | b')\nraise SystemExit(2)", "a | b"),
        ("print('+ more -')\nraise SystemExit(2)", "+ more -"),
    ],
)
def test_the_reason_is_the_error_and_not_the_frame_around_it(tmp_path, program, why):
    heard = []
    child = Child(
        "actor-0", ["-c", program], tmp_path / "log", restart_after_s=0, give_up_after=2,
        on_line=lambda _, event: heard.append(event),
    )  # fmt: skip
    asyncio.run(child.keep_running())
    assert f": {why}" in child.failed, child.failed
    assert all(event["why"] == why for event in heard if "why" in event)
