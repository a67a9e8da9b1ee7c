"""A client of the eval server against real processes: 64 requests at once over a broker and an evaluator, and the
stand-alone command."""

import asyncio
import os
import signal
import subprocess
import sys

import aiohttp
import msgspec
import pytest

from bus import facts
from core.tasks.compose import compose
from tests.benchmarks.judge_cpu import composed_jobs
from tests.unit.actors.gateway_stack import ROOT, KernelExecResult, evaluator_is_there, on_bus, payload, stack

PAIRS, TIMES = 16, 4


async def ask(session, job):
    async with session.post("/eval", json=payload(job[0].source, job[1])) as response:
        return response.status, await response.read()


async def faults_reach(session, wanted):
    """The total of faults once it is that, or what it is after 20 s: the fact of a verdict follows the verdict."""
    total = -1
    for _ in range(200):
        async with session.get("/fault_statistics") as response:
            total = (await response.json())["total_faults"]
        if total >= wanted:
            break
        await asyncio.sleep(0.1)
    return total


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_eval_server_client_gets_right_answers_for_64_requests_at_once(tmp_path):
    jobs = composed_jobs(PAIRS)

    async def main(here):
        timeout = aiohttp.ClientTimeout(total=250)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(here.url, connector=connector, timeout=timeout) as session:
            await evaluator_is_there(session)
            asking = [asyncio.create_task(ask(session, job)) for job in TIMES * jobs]
            seen = []
            while not all(task.done() for task in asking):  # /health answers all the while
                async with session.get("/health") as response:
                    seen.append((response.status, (await response.json())["kernelmill"]["requests"]))
                await asyncio.wait(asking, timeout=0.25)
            answers = await asyncio.gather(*asking)
            stray = {body for _, body in answers if b'"category":"illegal_memory_access"' in body}
            faults = await faults_reach(session, len(stray))
        assert {status for status, _ in seen} == {200} and max(count for _, count in seen) > 2
        for (_, candidate, wanted), (status, body) in zip(TIMES * jobs, answers, strict=True):
            if status == 200:
                result = msgspec.json.decode(body, type=KernelExecResult)
                assert (result.compiled and result.correctness) is (wanted == "pass"), (candidate, body)
            else:
                assert status == 400 and wanted == "fail", body  # the source does not parse
        assert faults == len(stray) > 0
        async with on_bus(here) as bus:
            judged = [fact for _, fact in await bus.read_facts(1) if fact.kind == facts.JUDGED]
        assert len(judged) == len({fact.data["candidate_key"] for fact in judged})
        assert len(judged) == len({(task.source, candidate) for task, candidate, _ in jobs})

    with stack(tmp_path) as here:
        asyncio.run(main(here))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_stand_alone_command_judges_and_stops(tmp_path):
    composition = next(iter(compose(seed=5, count=1)))
    process = subprocess.Popen(
        [sys.executable, "-m", "runners.cli", "gateway", "--port", "0", "--workers", "1"],
        cwd=ROOT,
        env={**os.environ, "KERNELMILL_GATEWAY_TOKEN": "secret"},
        stdout=subprocess.PIPE,
        text=True,
    )

    async def main(url):
        right = payload(composition.task().source, composition.kernel("fused"))
        wrong = payload(composition.task().source, composition.kernel("fused").replace("tl.store(", "tl.load("))
        async with aiohttp.ClientSession(url, headers={"Authorization": "Bearer secret"}) as session:
            async with session.post("/eval_batch", json={"requests": [right, wrong, right]}) as response:
                lines = [msgspec.json.decode(line) for line in (await response.read()).splitlines()]
            async with session.get("/gpu_status") as response:
                status = await response.json()
            for again in (right, wrong):
                async with session.post("/eval", json=again) as response:
                    assert response.status == 200
            async with session.get("/metrics") as response:
                told = (await response.text()).splitlines()
        for name in ("verdicts_total", "verdicts_cached_total"):
            counts = [line.split()[-1] for line in told if line.startswith(f"kernelmill_gateway_{name}{{")]
            assert counts == ["1", "1"], "two candidates were judged, and both stood when they were asked for again"
        assert {line["index"]: line["result"]["correctness"] for line in lines} == {0: True, 1: False, 2: True}
        assert status["devices"][0]["judged"] == 2

    try:
        words = process.stdout.readline().split()
        assert words[:2] == ["listening", "on"], words
        asyncio.run(main(words[2]))
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--host", "0.0.0.0"], "KERNELMILL_GATEWAY_TOKEN"),
        (["--port", "70000"], "--port 70000"),
        (["--workers", "0"], "--workers 0"),
        (["--target", "rtx"], "--target 'rtx'"),
        (["--draws", "1"], "--draws 1: "),
    ],
)
def test_bad_options_get_one_clear_line(words, said):
    environment = {name: value for name, value in os.environ.items() if name != "KERNELMILL_GATEWAY_TOKEN"}
    done = subprocess.run(
        [sys.executable, "-m", "runners.cli", "gateway", *words],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and said in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
