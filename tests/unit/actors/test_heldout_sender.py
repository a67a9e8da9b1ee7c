"""Held-out evaluation beside training over an in-memory bus: a real sampler and recorder, with a test in the places of
the learner and of a generator that answers with what it is asked for."""

import asyncio
import contextlib
import json
import re

import msgspec
import pytest

from actors.given_up import bury_group
from actors.prompt_sampler import PromptSampler
from actors.recorder import Recorder
from bus import codec, facts, subjects
from bus.memory import MemoryBroker
from bus.memory_server import MemoryServer
from bus.messages import Beat, Ended, Policy, Request, Step
from bus.run_bus import RunBus
from bus.topology import topology
from bus.worker import Worker
from configs.schema import RunConfig
from core.clock import SystemClock
from core.episodes.episode import Episode, Turn
from core.episodes.heldout_figures import slim
from core.evaluation.verdict import Verdict
from core.flow.chain import GroupOutcome
from core.record import reading
from core.run_folder import RunFolder
from tests.simulation import quick_time

SAMPLES = 2
TASKS = 3


class Run:
    """One run. The learner trains on a group as soon as it is whole; every step makes a version."""

    def __init__(self, folder, **evaluation):
        self.folder = RunFolder(folder)
        self.server = MemoryServer(SystemClock())
        self.config = RunConfig.model_validate(
            {
                "run": {"steps": 7},
                "model": {"path": "m"},
                "tasks": {
                    "train": [{"kind": "composed", "count": 4, "seed": 11, "split": "train"}],
                    "heldout": [{"kind": "composed", "count": 5, "seed": 12, "split": "heldout"}],
                    "degenerate": "keep",
                },
                "sampler": {"groups_per_step": 1, "max_staleness": 1, "group_size": 2},
                "evaluation": {"every_steps": 3, "tasks": TASKS, "samples": SAMPLES, **evaluation},
                "recorder": {"wandb": "disabled"},
            }
        )
        self.bus = self.seat("learner")
        self.requests: list[Request] = []
        self.version, self.incarnation, self.step_seq = 0, 0, 0
        self.in_flight, self.most_in_flight = 0, 0
        self.cap = 7
        """Steps are made up to this one."""
        self.poisoned = 0
        """So many held-out groups are given up."""
        self.outcomes: list[GroupOutcome] = []
        self.one_step = asyncio.Lock()
        self.hold = asyncio.Event()
        self.hold.set()
        """Held-out requests are answered only while this is set."""

    def seat(self, name):
        return RunBus(MemoryBroker(self.server, name), "run", name)

    async def open(self):
        await self.bus.broker.ensure(
            topology("run", device_classes=[("triton", "cpu")], ack_wait_s=60, dead_after_s=7, max_worker_deaths=3)
        )
        await self.incarnate(0)

    async def incarnate(self, step):
        """A learner takes over after `step`; the groups that it finds in the log again are trained on anew."""
        self.incarnation += 1
        again, self.outcomes = self.outcomes[step:], self.outcomes[:step]
        self.version = step
        await self.append("incarnation")
        await self.announce()
        for outcome in again:
            await self.step(outcome)

    async def append(self, kind, groups=()):
        record = Step(
            run_id="run", kind=kind, incarnation=self.incarnation, step=self.version, version=self.version,
            groups=groups, at=1.0,
        )  # fmt: skip
        self.step_seq = await self.bus.append_step(record, after_seq=self.step_seq)

    async def announce(self):
        await self.bus.put_policy(
            Policy(run_id="run", version=self.version, step=self.version, folder="f", fingerprint="f")
        )
        await self.bus.broker.put(self.bus.names.actors, "generator-0", beat_of(self.version))

    async def train(self, request):
        """What the generator and the learner do with a training group."""
        for index in range(request.size):
            await self.bus.publish_ended(
                Ended(
                    run_id="run", episode=episode(request, index, 1.0), admission=request.admission, size=request.size
                )
            )
        async with self.one_step:
            while self.version >= self.cap:  # noqa: ASYNC110 - the test's own word has no event
                await asyncio.sleep(0.01)
            trained = tuple(range(request.size))
            await self.step(GroupOutcome(group_id=request.group_id, admission=request.admission, trained=trained))

    async def step(self, outcome):
        self.version += 1
        self.outcomes.append(outcome)
        await self.append("step", (outcome,))
        if self.version == self.config.run.steps:
            await self.append("finished")
        await self.announce()

    async def play(self, _, request):
        self.requests.append(request)
        if not request.heldout:
            await self.train(request)
            return
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        await self.hold.wait()
        self.in_flight -= 1
        if self.poisoned:
            self.poisoned -= 1
            await bury_group(self.bus, request, "poison", "it is")
            return
        played = [episode(request, index, 0.25 + index) for index in range(request.size)]
        await self.bus.fact(
            facts.HELDOUT, group_id=request.group_id, version=self.version, seed=request.seed,
            episodes=msgspec.to_builtins(slim(played)),
        )  # fmt: skip

    @contextlib.asynccontextmanager
    async def at_work(self, *actors):
        """The actors, and the generator; all are stopped at the end, errors are raised."""
        worker = Worker(
            self.seat("generator-0"), stream=self.bus.names.requests, consumer=subjects.rollout_consumer(),
            kind=Request, handler=self.play, on_poison=None, slots=8, ack_wait_s=60,
        )  # fmt: skip
        made = [kind(self.config, self.seat(kind.kind), kind.kind, self.folder, SystemClock()) for kind in actors]
        work = [asyncio.create_task(actor.run()) for actor in made] + [asyncio.create_task(worker.run())]
        try:
            yield work
        finally:
            self.cap = self.config.run.steps
            self.hold.set()
            for actor in made:
                actor.stopping.set()
            worker.stop()
            await asyncio.gather(*work)

    async def facts(self, kind):
        return [fact.data for _, fact in await self.bus.read_facts(1, limit=10_000) if fact.kind == kind]

    async def until(self, work, condition):
        while not await condition():
            for task in work:
                if task.done():
                    task.result()
            await asyncio.sleep(0.01)

    def sampler(self):
        actor = PromptSampler(self.config, self.seat("sampler"), "sampler", self.folder, SystemClock())
        return asyncio.create_task(actor.run())

    async def came_to(self, version):
        return self.version >= version

    async def evaluated(self, *versions):
        return set(versions) <= {data["version"] for data in await self.facts(facts.EVALUATED)}

    def heldout_groups(self):
        return [request.group_id for request in self.requests if request.heldout]


def beat_of(version):
    return codec.encode(
        Beat(run_id="run", kind="generator", actor="generator-0", pid=1, host="h", at=1.0, version=version)
    )


def episode(request, index, score):
    verdict = Verdict(candidate_key="k", kind="pass", compiled=True, correct=True, speedup=1.0)
    turn = Turn(
        index=0, prompt_ids=b"", completion_ids=b"", logprobs=b"", versions=b"", candidate="x", verdict=verdict,
        score=score,
    )  # fmt: skip
    return Episode(group_id=request.group_id, index=index, task_id=request.task.task_id, turns=(turn,), end="max_turns")


def run(coroutine):
    return quick_time.run(coroutine, limit_s=60)


def test_a_training_run_is_evaluated_and_its_account_holds(tmp_path):
    made = Run(tmp_path)
    made.cap = 5

    async def scene():
        await made.open()
        made.hold.clear()
        async with made.at_work(PromptSampler, Recorder) as work:
            await made.until(work, lambda: made.came_to(5))

            async def asked():
                return made.in_flight == made.config.evaluation.groups_in_flight

            await made.until(work, asked)
            made.cap = 7
            await made.until(work, lambda: made.came_to(7))  # training does not wait for an answer
            assert made.most_in_flight == made.config.evaluation.groups_in_flight
            made.hold.set()
        return await made.facts(facts.ADMITTED)

    admitted = run(scene())
    ledger = reading.ledger(tmp_path)
    assert ledger.balanced, ledger.problems
    assert (ledger.groups.submitted, ledger.groups.trained, ledger.groups.pending) == (7, 7, 0)
    assert (ledger.episodes.submitted, ledger.episodes.trained) == (14, 14) and ledger.finished
    assert len(made.heldout_groups()) == 2
    assert not {fact["group_id"] for fact in admitted} & set(made.heldout_groups())


def test_versions_are_evaluated_within_their_bound_and_told_to_the_record(tmp_path):
    made = Run(tmp_path, every_steps=2)
    made.cap = 2

    async def scene():
        await made.open()
        async with made.at_work(PromptSampler, Recorder) as work:
            await made.until(work, lambda: made.evaluated(2))
            made.cap = 4
            await made.until(work, lambda: made.evaluated(2, 4))
            made.cap = 7
            await made.until(work, lambda: made.came_to(7))
        return await made.facts(facts.EVALUATED)

    told = run(scene())
    groups = made.heldout_groups()
    assert made.most_in_flight <= 2 and len(groups) == len(set(groups)) >= TASKS
    requests = [request for request in made.requests if request.heldout]
    assert {request.size for request in requests} == {SAMPLES} and {request.admission for request in requests} == {-1}
    by_task = {request.task.task_id: request.seed for request in requests}
    assert all(by_task[request.task.task_id] == request.seed for request in requests)
    assert {request.version for request in requests} >= {2, 4}
    for evaluated in told:
        assert 0 < evaluated["version"] <= evaluated["oldest"] <= evaluated["newest"] <= made.config.run.steps
        assert (evaluated["tasks"], evaluated["missing"]) == (TASKS, 0)
        assert evaluated["figures"]["reward/mean"] == pytest.approx(0.75)
        assert evaluated["figures"]["episodes/played"] == TASKS * SAMPLES
    lines = [json.loads(line) for line in (tmp_path / "record" / "tracked.jsonl").read_text().splitlines()]
    tracked = {line["step"]: line for line in lines if "heldout/version" in line}
    assert tracked.keys() == {evaluated["version"] for evaluated in told}
    assert all(line["heldout/reward/mean"] == pytest.approx(0.75) for line in tracked.values())
    assert reading.ledger(tmp_path).balanced


def test_a_resumed_run_and_a_rolled_back_one_send_nothing_twice(tmp_path):
    """The sampler dies in the middle of a round and starts again; the learner goes back behind the round's version."""
    made = Run(tmp_path)
    made.cap = 3

    async def scene():
        await made.open()
        made.hold.clear()
        async with made.at_work() as generator:
            sampler = made.sampler()

            async def asked():
                return made.in_flight == 2

            await made.until([*generator, sampler], asked)
            await killed(sampler)
            made.hold.set()

            async def answered():
                return len(await made.facts(facts.HELDOUT)) == 2

            await made.until(generator, answered)
            sampler = made.sampler()
            await made.until([*generator, sampler], lambda: made.evaluated(3))
            await killed(sampler)
            await made.incarnate(1)
            made.cap = 6
            sampler = made.sampler()
            await made.until([*generator, sampler], lambda: made.evaluated(3, 6))
            await killed(sampler)

    run(scene())
    groups = made.heldout_groups()
    assert len(groups) == len(set(groups)) == 2 * TASKS
    assert [request.version for request in made.requests if request.heldout] == [3] * TASKS + [6] * TASKS


def test_a_group_that_is_given_up_is_missing_and_holds_nothing_up(tmp_path):
    made = Run(tmp_path)
    made.cap = 3
    made.poisoned = 1

    async def scene():
        await made.open()
        async with made.at_work(PromptSampler) as work:
            await made.until(work, lambda: made.evaluated(3))
        return await made.facts(facts.EVALUATED)

    (told,) = run(scene())
    assert (told["tasks"], told["missing"]) == (TASKS - 1, 1)


def test_an_answer_that_does_not_come_is_waited_for_so_long(tmp_path):
    made = Run(tmp_path, answer_timeout_s=0.2)
    made.cap = 3

    async def scene():
        await made.open()
        made.hold.clear()
        async with made.at_work(PromptSampler) as work:
            await made.until(work, lambda: made.evaluated(3))
            made.hold.set()
        return await made.facts(facts.EVALUATED), await made.facts(facts.STALLED)

    (told,), stalled = run(scene())
    assert stalled and all(
        re.search(r"waited 0\.2 s for \d held-out groups? of version 3", one["text"]) for one in stalled
    )
    assert told["missing"] == TASKS and told["figures"]["episodes/played"] == 0.0


def test_evaluation_is_off_unless_it_is_asked_for(tmp_path):
    made = Run(tmp_path, every_steps=0)

    async def scene():
        await made.open()
        async with made.at_work(PromptSampler) as work:
            await made.until(work, lambda: made.came_to(7))

    run(scene())
    assert made.heldout_groups() == []


async def killed(task):
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
