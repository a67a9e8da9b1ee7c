"""The desk over the bus: shared judgings, bounded places, infra that is tried again and then given up."""

import asyncio

from actors.eval_desk import ATTEMPTS, GIVEN_UP_S
from tests.unit.actors.gateway_scene import body, post, run, scene, until

PASS = {"kind": "pass", "compiled": True, "correct": True}
INFRA = {"kind": "infra", "category": "infra", "feedback": "the disk is full"}


def test_one_candidate_asked_by_many_is_judged_once_and_remembered():
    async def main():
        go = asyncio.Event()

        async def verdicts(candidate):
            await go.wait()
            return PASS

        async with scene(verdicts) as (here, session):
            asking = [asyncio.create_task(post(session, "/eval", body("one", seed_num=i))) for i in range(8)]
            await until(lambda: here.desk.taken == 8)
            assert here.desk.in_hand == 1
            go.set()
            results = await asyncio.gather(*asking)
            assert [status for status, _, _ in results] == [200] * 8
            assert (await post(session, "/eval", body("one")))[1]["correctness"] is True
            assert here.judged == {"one": 1} and here.desk.taken == 0

    run(main)


def test_what_is_judged_and_what_stood_are_counted_apart():
    """Of each candidate: judged once, whether shared at the time or asked for again; the others stood."""

    async def main():
        go = asyncio.Event()

        async def verdicts(candidate):
            await go.wait()
            return {"right": PASS, "oob": {"kind": "fail", "stage": "launch", "category": "out_of_bounds"}}[candidate]

        async with scene(verdicts) as (here, session):
            asking = [asyncio.create_task(post(session, "/eval", body(one))) for one in ("right", "oob", "oob")]
            await until(lambda: here.desk.taken == 3)
            go.set()
            await asyncio.gather(*asking)
            for candidate in ("right", "right", "oob"):
                await post(session, "/eval", body(candidate))
            assert here.judged == {"right": 1, "oob": 1}
            async with session.get("/metrics") as response:
                lines = (await response.text()).splitlines()
            for name, right, oob in (("verdicts_total", 1, 1), ("verdicts_cached_total", 2, 1)):
                assert f'kernelmill_gateway_{name}{{kind="pass",category=""}} {right}' in lines
                assert f'kernelmill_gateway_{name}{{kind="fail",category="out_of_bounds"}} {oob}' in lines

    run(main)


async def counted(session, category=""):
    """(judged for requests, stood already) of one category, from /metrics."""
    async with session.get("/metrics") as response:
        lines = (await response.text()).splitlines()
    ends = f',category="{category}"}} '
    values = {line.partition("{")[0]: int(line.partition(ends)[2]) for line in lines if ends in line}
    return tuple(values.get(f"kernelmill_gateway_{name}", 0) for name in ("verdicts_total", "verdicts_cached_total"))


def test_a_verdict_that_comes_after_its_request_gave_up_was_judged_for_it():
    """It stands when it is asked for again, but nothing stood when it was asked for first."""

    async def main():
        go = asyncio.Event()

        async def verdicts(candidate):
            await go.wait()
            return PASS

        async with scene(verdicts, verdict_timeout_s=0.2) as (here, session):
            for _ in range(2):
                assert (await post(session, "/eval", body("slow")))[0] == 503
            assert await counted(session) == (0, 0)
            go.set()
            record, _ = await asyncio.gather(here.bus.read_facts(1, timeout_s=30), here.desk.empty.wait())
            assert record, "the fact follows the verdict"
            for stood in range(3):
                assert (await post(session, "/eval", body("slow")))[0] == 200
                assert await counted(session) == (1, stood)
            assert here.judged == {"slow": 1}

    run(main)


def test_a_request_looks_once_for_the_verdict_that_may_stand():
    """A new one does before it asks, one that stands is answered from that very look."""

    async def main():
        async def verdicts(candidate):
            return PASS

        async with scene(verdicts) as (here, session):
            broker, looks = here.judging._bus.broker, []
            last = broker.last

            async def counting(stream, subject):
                looks.append(subject)
                return await last(stream, subject)

            broker.last = counting
            for asked in range(1, 4):
                assert (await post(session, "/eval", body("one")))[0] == 200
                assert len(looks) == asked and len(set(looks)) == 1
            assert here.judged == {"one": 1}

    run(main)


def test_a_client_that_goes_away_takes_nothing_from_the_others():
    async def main():
        go = asyncio.Event()

        async def verdicts(candidate):
            await go.wait()
            return PASS

        async with scene(verdicts) as (here, session):
            asking = [asyncio.create_task(post(session, "/eval", body("one"))) for _ in range(2)]
            await until(lambda: here.desk.taken == 2)
            asking[0].cancel()
            await asyncio.gather(asking[0], return_exceptions=True)
            go.set()
            status, result, _ = await asking[1]
            assert (status, result["correctness"], here.judged["one"]) == (200, True, 1)
            await here.desk.empty.wait()

    run(main)


def test_more_requests_than_places_are_refused_with_a_time_to_come_back():
    async def main():
        go = asyncio.Event()

        async def verdicts(candidate):
            await go.wait()
            return PASS

        async with scene(verdicts, places=2) as (here, session):
            asking = [asyncio.create_task(post(session, "/eval", body(f"c{i}"))) for i in range(2)]
            await until(lambda: here.desk.taken == 2)
            status, result, headers = await post(session, "/eval", body("third"))
            assert status == 503 and "2 of 2 places" in result["detail"] and int(headers["Retry-After"]) >= 1
            status, result, _ = await post(session, "/eval_batch", {"requests": [body("x")] * 3})
            assert status == 413 and "at most 2" in result["detail"]
            go.set()
            assert [status for status, _, _ in await asyncio.gather(*asking)] == [200, 200]
            assert (await post(session, "/eval", body("third")))[0] == 200

    run(main)


def test_infra_is_judged_again_when_asked_again():
    async def main():
        left = [INFRA]

        async def verdicts(candidate):
            return left.pop() if left else PASS

        async with scene(verdicts) as (here, session):
            status, result, headers = await post(session, "/eval", body("one"))
            assert status == 503 and "disk is full" in result["detail"] and "Retry-After" in headers
            assert result["metadata"]["category"] == "subprocess_error"
            assert "correctness" not in result
            assert (await post(session, "/eval", body("one")))[0] == 200
            assert (await post(session, "/eval", body("one")))[0] == 200
            assert here.judged["one"] == 2

    run(main)


def test_a_candidate_that_can_never_be_judged_is_given_up_for_a_while():
    async def main():
        async def verdicts(candidate):
            return INFRA

        async with scene(verdicts) as (here, session):
            statuses = [(await post(session, "/eval", body("one")))[0] for _ in range(ATTEMPTS + 2)]
            assert statuses == [503] * ATTEMPTS + [500] * 2
            assert here.judged["one"] == ATTEMPTS
            here.clock.advance(GIVEN_UP_S + 1)
            assert (await post(session, "/eval", body("one")))[0] == 503
            assert here.judged["one"] == ATTEMPTS + 1

    run(main)


def test_without_an_evaluator_requests_wait_and_are_refused_after_a_while():
    async def main():
        async def verdicts(candidate):
            return PASS

        async with scene(verdicts) as (here, session):
            await until(lambda: here.book.names)
            await here.bus.broker.delete(here.bus.names.actors, "judge")
            await until(lambda: not here.judging.devices()[0].alive)
            here.clock.advance(30)
            assert (await post(session, "/eval", body("early")))[0] == 200
            here.clock.advance(31)
            status, result, headers = await post(session, "/eval", body("late"))
            assert status == 503 and "no evaluator" in result["detail"] and "Retry-After" in headers
            async with session.get("/health") as response:
                health = await response.json()
            assert response.status == 200
            assert (health["status"], health["total_gpu_devices"]) == ("degraded", 0)

    run(main)
