"""The API over HTTP: fields, limits, tokens, streams. The judge behind the queue is the test."""

import asyncio

import aiohttp
import msgspec
import pytest

from actors.eval_http import listen
from bus.server import BusyPort
from configs.load import ConfigError
from tests.unit.actors.gateway_scene import beat, body, post, run, scene, until

PASS = {"kind": "pass", "compiled": True, "correct": True, "feedback": "correct"}
WRONG = {"kind": "fail", "stage": "correctness", "category": "wrong_value", "compiled": True, "feedback": "off by 3"}


async def by_name(candidate):
    """The candidate's text says its verdict."""
    return {
        "right": PASS,
        "wrong": WRONG,
        "oob": {"kind": "fail", "stage": "launch", "category": "out_of_bounds", "feedback": "oob"},
        "infra": {"kind": "infra", "category": "infra"},
    }[candidate]


async def get(session, path, **more):
    async with session.get(path, **more) as response:
        return response.status, msgspec.json.decode(await response.read())


def test_results_have_the_eval_servers_fields():
    async def main():
        async with scene(by_name) as (_, session):
            _, right, _ = await post(session, "/eval", body("right"))
            _, wrong, _ = await post(session, "/eval", body("wrong"))
            for result in (right, wrong):
                assert set(result) == {"compiled", "correctness", "metadata", "runtime", "runtime_stats"}
                assert result["metadata"]["kernelmill"]["evaluator"] == "judge"
                assert "seed_num" in result["metadata"]["kernelmill"]["ignored"]
            assert (right["compiled"], right["correctness"]) == (True, True)
            assert (wrong["compiled"], wrong["correctness"]) == (True, False)
            assert wrong["metadata"]["correctness_issue"] == "off by 3"

    run(main)


def test_a_batch_streams_each_answer_when_it_is_there():
    async def main():
        slow = asyncio.Event()

        async def verdicts(candidate):
            if candidate == "slow":
                await slow.wait()
                return PASS
            return await by_name(candidate)

        async with scene(verdicts) as (here, session):
            requests = [body("slow", id="a"), body("wrong", id=7), {"id": "bad"}, body("infra")]
            async with session.post("/eval_batch", json={"requests": requests}) as response:
                assert response.content_type == "application/x-ndjson"
                early = [msgspec.json.decode(await response.content.readline()) for _ in range(3)]
                slow.set()
                last = msgspec.json.decode(await response.content.readline())
                assert await response.content.read() == b""
            found = {line["index"]: line for line in early}
            assert {index: line["status"] for index, line in found.items()} == {1: 200, 2: 422, 3: 503}
            assert (found[1]["id"], found[1]["result"]["correctness"]) == (7, False)
            assert found[2]["id"] == "bad"
            assert "custom_model_src" not in found[2] and "original_model_src" in found[2]["detail"]
            assert found[3]["retry_after_s"] > 0 and "result" not in found[3]
            assert (last["index"], last["id"], last["result"]["correctness"]) == (0, "a", True)
            assert here.desk.taken == 0

    run(main)


def test_a_batchs_reader_that_goes_away_frees_its_places():
    async def main():
        go = asyncio.Event()

        async def verdicts(candidate):
            await go.wait()
            return PASS

        async with scene(verdicts) as (here, session):
            async with session.post("/eval_batch", json={"requests": [body(f"c{i}") for i in range(4)]}) as response:
                assert (response.status, here.desk.taken) == (200, 4)
                response.close()
            go.set()
            await here.desk.empty.wait()
            assert (await post(session, "/eval", body("c0")))[0] == 200

    run(main)


def test_faults_are_counted_per_evaluator_and_reset():
    async def main():
        async with scene(by_name) as (here, session):
            for _ in range(2):  # the second answer is the standing verdict: no new fault
                await post(session, "/eval", body("oob"))
            await post(session, "/eval", body("right"))
            await post(session, "/eval", body("infra"))
            await until(lambda: here.book.total == 2)
            _, statistics = await get(session, "/fault_statistics")
            assert statistics["per_device_faults"] == {"0": 2}
            assert (statistics["total_faults"], statistics["max_faults_threshold"]) == (2, 10)
            assert statistics["devices_near_limit"] == []
            assert statistics["kernelmill"]["by_category"] == {"out_of_bounds": 1, "infra": 1}
            assert (await post(session, "/reset_gpu/7", None))[0] == 400
            assert (await post(session, "/reset_gpu/0", None))[1]["old_fault_count"] == 2
            assert (await get(session, "/fault_statistics"))[1]["total_faults"] == 0
            for path in ("/cleanup", "/reset_devices"):
                assert (await post(session, path, None))[0] == 200

    run(main)


def test_evaluators_are_the_devices():
    async def main():
        async with scene(by_name) as (here, session):
            await beat(here.bus, busy=2.0, judged=5.0)
            await until(lambda: any(device.judged == 5 for device in here.judging.devices()))
            _, health = await get(session, "/health")
            assert (health["total_gpu_devices"], health["busy_gpu_devices"], health["available_device_ids"]) == (
                1,
                1,
                [],
            )
            assert health["status"] == "healthy"
            _, status = await get(session, "/gpu_status")
            assert status["devices"][0]["name"] == "judge" and status["semaphore_permits"] == 0
            _, backends = await get(session, "/backend_info")
            assert backends["supported_backends"] == ["triton"]
            assert (await get(session, "/"))[1]["status"] == "running"

    run(main)


def test_metrics_are_in_prometheus_text():
    async def main():
        async with scene(by_name) as (_, session):
            await post(session, "/eval", body("right"))
            async with session.get("/metrics") as response:
                lines = (await response.text()).splitlines()
            assert 'kernelmill_gateway_answers_total{path="/eval",status="200"} 1' in lines
            assert 'kernelmill_gateway_verdicts_total{kind="pass",category=""} 1' in lines

    run(main)


def test_what_is_no_request_is_refused_with_one_line_in_detail():
    async def main():
        async with scene(by_name, max_request_kb=2) as (here, session):
            assert await get(session, "/nothing") == (
                404,
                {"detail": "no such path '/nothing': wanted /eval, or another that docs/gateway.md lists"},
            )
            assert await get(session, "/eval") == (405, {"detail": "GET /eval: wanted POST"})
            async with session.post("/eval", data=b"{}") as response:
                assert response.status == 422 and "application/json" in (await response.json())["detail"]
            status, result, _ = await post(session, "/eval", body("x" * 3000))
            assert status == 413 and "2048" in result["detail"]
            status, result, _ = await post(session, "/eval", {"custom_model_src": "b"})
            assert status == 422 and "original_model_src" in result["detail"]
            async with session.post("/eval_batch", json={"requests": [body("x" * 3000), body("right")]}) as response:
                lines = [msgspec.json.decode(line) for line in (await response.read()).splitlines()]
            assert sorted((line["index"], line["status"]) for line in lines) == [(0, 413), (1, 200)]
            status, result, _ = await post(session, "/eval", body("right"), headers={"Origin": "http://evil.example"})
            assert status == 403
            assert here.desk.taken == 0 and here.judged == {"right": 1}

    run(main)


def test_a_token_is_wanted_for_all_but_health():
    async def main():
        async with scene(by_name, token="secret") as (_, session):
            assert (await post(session, "/eval", body("right")))[0] == 401
            wrong = {"Authorization": "Bearer other"}
            assert (await get(session, "/fault_statistics", headers=wrong))[0] == 401
            right = {"Authorization": "Bearer secret"}
            assert (await post(session, "/eval", body("right"), headers=right))[0] == 200
            assert (await get(session, "/health"))[0] == 200

    run(main)


def test_a_gateway_that_stops_finishes_what_it_has_and_takes_no_more():
    async def main():
        go = asyncio.Event()

        async def verdicts(candidate):
            await go.wait()
            return PASS

        async with scene(verdicts) as (here, session):
            asking = asyncio.create_task(post(session, "/eval", body("one")))
            await until(lambda: here.desk.taken)
            stopping = asyncio.create_task(here.server.stop(grace_s=30))
            await asyncio.sleep(0)
            status, result, headers = await post(session, "/eval", body("two"))
            assert status == 503 and "stopping" in result["detail"] and "Retry-After" in headers
            go.set()
            assert (await asking)[0] == 200
            await stopping
            with pytest.raises(aiohttp.ClientError):
                await post(session, "/eval", body("one"))

    run(main)


def test_it_listens_beyond_this_machine_only_with_a_token():
    with pytest.raises(ConfigError, match="KERNELMILL_GATEWAY_TOKEN"):
        listen("0.0.0.0", 0, "")
    listen("0.0.0.0", 0, "secret").close()
    listen("localhost", 0, "").close()
    with pytest.raises(ConfigError, match="address of this machine"):
        listen("192.0.2.1", 0, "secret")


def test_a_port_that_is_taken_is_said_so():
    first = listen("127.0.0.1", 0, "")
    with first, pytest.raises(BusyPort, match="--port"):
        listen("127.0.0.1", first.getsockname()[1], "")
