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


@pytest.mark.parametrize(("young_s", "what"), [(20.0, "start"), (0.0, "go on")])
def test_what_a_person_must_mend_ends_it_with_its_line(tmp_path, monkeypatch, young_s, what):
    """A full disk, say, that the learner met hours after its start."""
    monkeypatch.setattr("runners.processes.YOUNG_S", young_s)
    child = Child(
        "learner-0", ["-c", "print('no room')\nraise SystemExit(2)"], tmp_path / "log", restart_after_s=0,
        give_up_after=2, on_line=lambda *_: None,
    )  # fmt: skip
    asyncio.run(child.keep_running())
    assert child.failed == f"learner-0 can't {what}: no room"
    assert child.restarts == 0
