"""The bus as actors see it: typed messages of one run, on top of a `bus.broker.Broker`.

Publishing is idempotent by key: `False` means that the message already stands, which is as good as having published
it. Reading refuses what is not a message of this schema, counts it and goes on; a refused message never stops an actor.
"""

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import structlog

from bus import claims, codec, facts, subjects, topology
from bus.broker import Broker, Entry, Record, SequenceConflict, SubjectTaken
from bus.holders import Holders
from bus.messages import Beat, Blob, Cursor, Dead, Ended, Evaluation, Fact, Judged, Message, Policy, Request, Step
from bus.undecodable import Group, Undecodable, misfit
from core.clock import Clock, SystemClock

PUBLISH_TIMEOUT_S = 60.0
"""How long an outage may last until publishing gives up; the same key is tried again and again meanwhile."""
BLOB_BYTES = 2**20
"""Size of a blob's pieces: far below what a message may have, and few enough for an adapter."""
_AROUND_A_PIECE = 4096
"""What a message has beside its piece, at most."""
_BLOBS_AT_ONCE = 8
"""Pieces asked for in one read: a fetch of many megabytes would stand in the way of everything else."""
M = TypeVar("M", bound=Message)
log = structlog.get_logger()


class Names:
    """Stream and bucket names of one run."""

    def __init__(self, run_id: str) -> None:
        self.requests = subjects.stream(run_id, topology.REQUESTS)
        self.evaluations = subjects.stream(run_id, topology.EVALUATIONS)
        self.verdicts = subjects.stream(run_id, topology.VERDICTS)
        self.episodes = subjects.stream(run_id, topology.EPISODES)
        self.steps = subjects.stream(run_id, topology.STEPS)
        self.facts = subjects.stream(run_id, topology.FACTS)
        self.blobs = subjects.stream(run_id, topology.BLOBS)
        self.dead = subjects.stream(run_id, topology.DEAD)
        self.policy = subjects.bucket(run_id, topology.POLICY)
        self.actors = subjects.bucket(run_id, topology.ACTORS)
        self.held = subjects.bucket(run_id, topology.HELD)
        self.sampler = subjects.bucket(run_id, topology.SAMPLER)


class RunBus:
    """One actor's view of one run."""

    def __init__(
        self, broker: Broker, run_id: str, actor: str, clock: Clock | None = None, *, episodes: Path | None = None
    ) -> None:
        """`episodes` is the run folder's place for episodes that are too large for a message; without it they are
        refused."""
        self.broker = broker
        self.run_id = run_id
        self.actor = actor
        self.clock = clock or SystemClock()
        self.refused = 0
        self.decoding_s = 0.0
        """Time spent on reading messages of logs."""
        self.names = Names(run_id)
        self._undecodable = Undecodable(broker, run_id)
        self._claims = claims.Claims(episodes) if episodes is not None else None
        self.holders = Holders(broker, self.names.held)
        self._verdict_waits: dict[str, list[asyncio.Future[Judged]]] = {}
        self._verdict_subscription: Any = None
        self._reconnected: list[Callable[[], None]] = []
        broker.on_reconnect(self._resync)

    # -- requests and evaluations: work queues, consumed through bus.worker ------------------------------------------

    async def publish_request(self, request: Request) -> bool:
        return await self._publish_once(subjects.request(self.run_id, request.group_id), request)

    async def publish_evaluation(self, evaluation: Evaluation) -> bool:
        subject = subjects.evaluate(
            self.run_id, evaluation.task.backend, evaluation.device_class, evaluation.candidate_key
        )
        return await self._publish_once(subject, evaluation)

    # -- verdicts: one per key, live and standing --------------------------------------------------------------------

    async def publish_judged(self, judged: Judged) -> None:
        subject = subjects.verdict(self.run_id, judged.verdict.candidate_key)
        await self.broker.publish(subject, codec.encode(judged), timeout_s=PUBLISH_TIMEOUT_S)

    async def standing_verdict(self, key: str) -> Judged | None:
        """The verdict that stands for a candidate key, if any can be seen."""
        try:
            record = await self.broker.last(self.names.verdicts, subjects.verdict(self.run_id, key))
        except TimeoutError as error:
            log.info("no answer, going on without", why=str(error))
            return None
        return self._read(record.data, Judged, record.subject) if record else None

    async def judged(self, evaluation: Evaluation, *, timeout_s: float, recheck_s: float = 5.0) -> Judged:
        """Have a candidate judged and wait for its verdict: answered from the standing verdict where there is one.

        Looks again every `recheck_s` and after a reconnect, since live messages are missed while disconnected. Raises
        TimeoutError after `timeout_s`.
        """
        return (await self.judged_or_stood(evaluation, timeout_s=timeout_s, recheck_s=recheck_s))[0]

    async def judged_or_stood(
        self, evaluation: Evaluation, *, timeout_s: float, recheck_s: float = 5.0
    ) -> tuple[Judged, bool]:
        """`judged`, and whether the verdict stood before this call asked for one."""
        key = evaluation.candidate_key
        if self._verdict_subscription is None:
            self._verdict_subscription = self.broker.subscribe(subjects.verdicts(self.run_id), self._on_verdict)
        await self._verdict_subscription.started()
        future: asyncio.Future[Judged] = asyncio.get_running_loop().create_future()
        self._verdict_waits.setdefault(key, []).append(future)
        deadline = self.clock.monotonic() + timeout_s
        try:
            if (standing := await self.standing_verdict(key)) is not None:
                return standing, True
            await self.publish_evaluation(evaluation)
            while (left := deadline - self.clock.monotonic()) > 0:
                done, _ = await asyncio.wait({future}, timeout=min(recheck_s, left))
                if done:
                    return future.result(), False
                if (standing := await self.standing_verdict(key)) is not None:
                    return standing, False
            raise TimeoutError(f"{self.actor} waited {timeout_s:.0f} s for the verdict of candidate {key}")
        finally:
            waits = self._verdict_waits.get(key, [])
            if future in waits:
                waits.remove(future)
            if not waits:
                self._verdict_waits.pop(key, None)

    def _on_verdict(self, subject: str, data: bytes) -> None:
        key = subjects.last_part(subject)
        if key not in self._verdict_waits:
            return
        judged = self._read(data, Judged, subject)
        if judged is None:
            return
        for future in self._verdict_waits.get(key, []):
            if not future.done():
                future.set_result(judged)

    # -- episodes: a log read by position ----------------------------------------------------------------------------

    async def publish_ended(self, ended: Ended) -> bool:
        """Raises TooLarge for an episode that can't be handed over in any way."""
        subject = subjects.episode(self.run_id, ended.episode.group_id, ended.episode.index)
        if self._claims is None:
            return await self._publish_once(subject, ended)
        data = codec.encode(ended, claims.MAX_BYTES)
        if len(data) <= min(claims.ABOVE, self.broker.max_message):
            return await self._publish_once(subject, data)
        return await self._publish_once(subject, await self._claims.put(ended, data))

    async def admitted(self, group_id: str) -> Group | None:
        """What stands in the group's `admitted` fact; None without one."""
        return await self._undecodable.group(group_id)

    async def standing_episodes(self, group_id: str, size: int) -> set[int]:
        """Indices of a group's episodes that stand in the log."""
        found = await asyncio.gather(
            *(self.broker.last(self.names.episodes, subjects.episode(self.run_id, group_id, i)) for i in range(size))
        )
        return {i for i, record in enumerate(found) if record is not None}

    async def read_episodes(self, from_seq: int, limit: int = 64, timeout_s: float = 1.0) -> list[tuple[int, Ended]]:
        """(position, episode); in the place of a message that can't be read a tombstone (`bus.undecodable`)."""
        return await self._read_log(self.names.episodes, from_seq, Ended, limit, timeout_s, self._read_episode)

    async def trim_episodes(self, below_seq: int) -> None:
        await self.broker.trim(self.names.episodes, below_seq)
        if self._claims is not None:
            await self._claims.sweep(self.broker, self.run_id, self.names.episodes)

    # -- steps: compare-and-set on the last record -------------------------------------------------------------------

    async def append_step(self, step: Step, *, after_seq: int) -> int:
        """Append to the chain; raises SequenceConflict when another learner wrote after `after_seq`."""
        return await self.broker.publish(
            subjects.step(self.run_id), codec.encode(step), expect_last_seq=after_seq, timeout_s=PUBLISH_TIMEOUT_S
        )

    async def read_steps(self, from_seq: int, limit: int = 256, timeout_s: float = 1.0) -> list[tuple[int, Step]]:
        return await self._read_log(self.names.steps, from_seq, Step, limit, timeout_s)

    async def last_step(self) -> Step | None:
        """The chain's last record. Raises TimeoutError when the broker can't be asked."""
        record = await self.broker.last(self.names.steps, subjects.step(self.run_id))
        return self._read(record.data, Step, record.subject) if record else None

    # -- facts and dead letters --------------------------------------------------------------------------------------

    async def fact(self, kind: str, /, trace: str = "", **data: Any) -> None:
        if kind not in facts.ALL:
            raise ValueError(f"unknown fact kind {kind!r}; kinds are listed in bus.facts")
        message = Fact(run_id=self.run_id, kind=kind, actor=self.actor, at=self.clock.now(), data=data, trace=trace)
        await self.broker.publish(subjects.fact(self.run_id, kind), codec.encode(message), timeout_s=PUBLISH_TIMEOUT_S)

    async def read_facts(self, from_seq: int, limit: int = 256, timeout_s: float = 1.0) -> list[tuple[int, Fact]]:
        return await self._read_log(self.names.facts, from_seq, Fact, limit, timeout_s)

    # -- blobs: pieces in a log, read by position ----------------------------------------------------------------------

    async def put_blob(self, name: str, data: bytes) -> int:
        """Answers with the position of its first piece, which readers need."""
        size = min(BLOB_BYTES, self.broker.max_message - _AROUND_A_PIECE)
        count = max(1, -(-len(data) // size))
        first = 0
        for number in range(count):
            piece = data[number * size : (number + 1) * size]
            message = Blob(run_id=self.run_id, name=name, number=number, count=count, data=piece)
            subject = subjects.blob(self.run_id, name)
            seq = await self.broker.publish(subject, codec.encode(message), timeout_s=PUBLISH_TIMEOUT_S)
            first = first or seq
        return first

    async def blob(self, name: str, first_seq: int, timeout_s: float) -> bytes:
        """Raises FileNotFoundError when it was trimmed, TimeoutError when its pieces are not all there in time."""
        deadline = self.clock.monotonic() + timeout_s
        pieces: dict[int, bytes] = {}
        count, at = -1, first_seq
        while count != len(pieces):
            state = await self.broker.stream_state(self.names.blobs)
            if state.first_seq > first_seq:
                raise FileNotFoundError(f"blob {name} at {first_seq} was trimmed")
            if self.clock.monotonic() > deadline:
                raise TimeoutError(f"{len(pieces)} pieces of blob {name} at {first_seq} came in {timeout_s:g} s")
            for seq, piece in await self._read_log(self.names.blobs, at, Blob, _BLOBS_AT_ONCE, 1.0):
                at = seq + 1
                if piece.name == name:
                    pieces[piece.number], count = piece.data, piece.count
        return b"".join(pieces[number] for number in range(count))

    async def trim_blobs(self, below_seq: int) -> None:
        await self.broker.trim(self.names.blobs, below_seq)

    async def bury(self, dead: Dead) -> None:
        await self.broker.publish(subjects.dead(self.run_id, "letter"), codec.encode(dead))

    # -- key-value state ---------------------------------------------------------------------------------------------

    async def policy(self) -> Policy | None:
        entry = await self.broker.get(self.names.policy, "current")
        return self._value(entry, Policy)

    async def put_policy(self, policy: Policy) -> None:
        await self.broker.put(self.names.policy, "current", codec.encode(policy))

    async def watch_policy(self) -> AsyncIterator[Policy]:
        async for entry in self.broker.watch(self.names.policy):
            if (policy := self._value(entry, Policy)) is not None:
                yield policy

    async def beat(self, beat: Beat) -> None:
        await self.holders.tell(beat)
        await self.broker.put(self.names.actors, self.actor, codec.encode(beat))

    async def beats(self) -> list[Beat]:
        """The last beats of all actors that are alive, or said that they leave."""
        keys = await self.broker.keys(self.names.actors)
        entries = await asyncio.gather(*(self.broker.get(self.names.actors, key) for key in keys))
        return [beat for entry in entries if (beat := self._value(entry, Beat)) is not None]

    async def watch_actors(self) -> AsyncIterator[tuple[str, Beat | None]]:
        """(actor, beat), and (actor, None) when its beats stopped or it left."""
        async for entry in self.broker.watch(self.names.actors):
            yield entry.key, self._value(entry, Beat)

    async def cursor(self) -> tuple[Cursor | None, int]:
        """The sampler's cursor and its revision (0 when there is none)."""
        entry = await self.broker.get(self.names.sampler, "cursor")
        return self._value(entry, Cursor), entry.revision if entry else 0

    async def put_cursor(self, cursor: Cursor, revision: int) -> int:
        """Compare-and-set; raises SequenceConflict when another sampler wrote."""
        return await self.broker.update(self.names.sampler, "cursor", codec.encode(cursor), revision)

    async def count_up(self, name: str) -> int:
        """Add one to a counter of the run (deaths and failures of one piece of work) and return the new value."""
        while True:
            entry = await self.broker.get(self.names.sampler, name)
            value = int(entry.value or b"0") + 1 if entry and entry.value else 1
            try:
                await self.broker.update(
                    self.names.sampler, name, str(value).encode(), entry.revision if entry and entry.value else 0
                )
                return value
            except SequenceConflict:
                continue

    # -- shared ------------------------------------------------------------------------------------------------------

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        self._reconnected.append(callback)

    def read(self, data: bytes, kind: type[M], subject: str, **told: str) -> M | None:
        """The message in `data`, or None (counted and logged, with `told`) when it is not one of this kind and
        schema."""
        return self._read(data, kind, subject, **told)

    async def close(self) -> None:
        if self._verdict_subscription is not None:
            await self._verdict_subscription.stop()
        await self.broker.close()

    def _resync(self) -> None:
        for callback in self._reconnected:
            callback()

    async def _publish_once(self, subject: str, message: Message | bytes) -> bool:
        data = message if isinstance(message, bytes) else codec.encode(message)
        try:
            await self.broker.publish(subject, data, timeout_s=PUBLISH_TIMEOUT_S)
            return True
        except SubjectTaken:
            return False

    async def _read_log(
        self,
        stream: str,
        from_seq: int,
        kind: type[M],
        limit: int,
        timeout_s: float,
        read: Callable[[Record], Awaitable[M | None]] | None = None,
    ) -> list[tuple[int, M]]:
        while True:
            found: list[tuple[int, M]] = []
            try:
                records: list[Record] = await self.broker.read(stream, from_seq, limit, timeout_s)
                started = time.perf_counter()
                for record in records:
                    message = await read(record) if read else self._read(record.data, kind, record.subject)
                    if message is not None:
                        found.append((record.seq, message))
                self.decoding_s += time.perf_counter() - started
            except TimeoutError as error:  # an outage: followers ask again, from where this ends
                log.info("no answer, asking again", why=str(error))
                return found
            if found or not records:
                return found
            from_seq = records[-1].seq + 1  # else a follower would be given what it can't read again and again

    async def _read_episode(self, record: Record) -> Ended | None:
        try:
            ended = await claims.ended(record.data, self._claims)
            why = misfit(ended, record.subject)
        except codec.Refused as error:
            why = str(error)
        if not why:
            return ended
        standing_in = await self._undecodable.tombstone(record, why)
        self.refused += 1
        log.warning(
            "message refused", subject=record.subject, reason="undecodable", detail=why,
            became="tombstone" if standing_in else "nothing: no such episode was admitted",
        )  # fmt: skip
        return standing_in

    def _value(self, entry: Entry | None, kind: type[M]) -> M | None:
        if entry is None or entry.value is None:
            return None
        return self._read(entry.value, kind, entry.key)

    def _read(self, data: bytes, kind: type[M], subject: str, **told: str) -> M | None:
        try:
            return codec.decode(data, kind)
        except codec.Refused as error:
            self.refused += 1
            log.warning("message refused", subject=subject, reason=error.reason, detail=str(error), **told)
            return None


def host() -> str:
    return socket.gethostname()


def pid() -> int:
    return os.getpid()
