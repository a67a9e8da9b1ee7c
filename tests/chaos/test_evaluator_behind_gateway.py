"""An evaluator dies by kill -9 while the gateway has 32 requests in hand: each gets a right answer or a clear 503."""

import asyncio
import signal

import aiohttp
import msgspec
import pytest

from tests.benchmarks.judge_cpu import composed_jobs
from tests.unit.actors.gateway_stack import KernelExecResult, evaluator_is_there, payload, stack

PAIRS, TIMES = 4, 8


async def ask(session, job):
    async with session.post("/eval", json=payload(job[0].source, job[1])) as response:
        return response.status, await response.read(), response.headers


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_requests_in_hand_survive_the_evaluator(tmp_path):
    jobs = composed_jobs(PAIRS)

    async def main(here):
        timeout = aiohttp.ClientTimeout(total=200)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(here.url, connector=connector, timeout=timeout) as session:
            await evaluator_is_there(session)
            asking = [asyncio.create_task(ask(session, job)) for job in TIMES * jobs]
            await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
            assert not all(task.done() for task in asking), "they were all through before the kill"
            here.restart("evaluator", signal.SIGKILL)
            answers = await asyncio.gather(*asking)
            again = [await ask(session, job) for job in jobs]
        for (_, candidate, wanted), (status, body, headers) in zip(TIMES * jobs + jobs, answers + again, strict=True):
            if status == 503:
                detail = msgspec.json.decode(body)["detail"]
                assert detail and "\n" not in detail and int(headers["Retry-After"]) > 0
            elif status == 200:
                result = msgspec.json.decode(body, type=KernelExecResult)
                assert (result.compiled and result.correctness) is (wanted == "pass"), (candidate, body)
            else:
                assert status == 400 and wanted == "fail", (status, body)  # the source does not parse
        assert sum(status == 200 for status, _, _ in again) >= PAIRS // 2

    with stack(tmp_path, workers=1, ack_wait_s=3) as here:
        asyncio.run(main(here))
