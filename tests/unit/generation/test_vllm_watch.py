"""The watch over a core that may hang, with a core that does what the test says."""

import asyncio
import time

import pytest

from core.generation import vllm_compat, vllm_watch

LIMIT_S = 0.05


class Dead(Exception):
    """As vLLM's EngineDeadError."""


class _Core:
    """Silent; answers health checks by `answers`, the last of them for ever."""

    def __init__(self, *answers):
        self._answers = list(answers)
        self.asked = 0
        self.killed = False

    async def collective_rpc(self, method):
        assert method == "check_health"
        self.asked += 1
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if answer == "hangs":
            await asyncio.Event().wait()
        if isinstance(answer, Exception):
            raise answer


@pytest.fixture(autouse=True)
def silent(monkeypatch):
    started = time.monotonic()
    monkeypatch.setattr(vllm_compat, "heard_at", lambda core: started)
    monkeypatch.setattr(vllm_compat, "dead_errors", lambda: (Dead,))
    monkeypatch.setattr(vllm_compat, "kill", lambda core: setattr(core, "killed", True))


@pytest.mark.parametrize(
    ("answers", "killed", "asked"),
    [
        (["hangs"], True, 1),
        ([None, "hangs"], True, 2),
        ([Dead()], False, 1),
        ([RuntimeError("a worker's device is lost"), "hangs"], True, 2),  # it is watched on
    ],
)
def test_a_core_is_ended_when_it_answers_no_more(answers, killed, asked):
    core = _Core(*answers)
    asyncio.run(vllm_watch.end_when_silent(core, lambda: True, LIMIT_S))
    assert (core.killed, core.asked) == (killed, asked)


def test_a_core_without_requests_may_be_silent():
    core = _Core("hangs")

    async def watched():
        looks = 0
        enough = asyncio.Event()

        def busy():
            nonlocal looks
            looks += 1
            if looks > 20:
                enough.set()
            return False

        watch = asyncio.create_task(vllm_watch.end_when_silent(core, busy, LIMIT_S))
        await enough.wait()
        watch.cancel()

    asyncio.run(watched())
    assert not core.asked and not core.killed
