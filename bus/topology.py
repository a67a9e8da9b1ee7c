"""The one table of streams, consumers and buckets. Brokers create exactly this, and refuse what differs.

stream       subject                                               keeps                       read by
REQUESTS     km.<run>.request.<group>                              work queue, one per key     consumer `rollout`
EVALUATIONS  km.<run>.evaluate.<backend>.<device class>.<key>      work queue, one per key     a consumer per backend
                                                                                               and device class
VERDICTS     km.<run>.verdict.<key>                                newest per key, max age     by key
EPISODES     km.<run>.episode.<group>.<i>                          log, one per key, trimmed   by position
STEPS        km.<run>.step                                         log, compare-and-set        by position
FACTS        km.<run>.fact.<kind>                                  log                         by position
BLOBS        km.<run>.blob.<name>                                  log, trimmed                by position
DEAD         km.<run>.dead.<what>, and the broker's own            log                         by position
             advisories about REQUESTS and EVALUATIONS

bucket       key            holds
policy       `current`      the weights in use
actors       <kind>.<id>    heartbeats; a key that expires is a death
held         <kind>.<id>.<process>   the beat of a process that holds deliveries: stands when it is dead
sampler      `cursor`       where the sampler stands, compare-and-set
"""

from collections.abc import Sequence

import msgspec

from bus import subjects
from bus.broker import BucketSpec, ConsumerSpec, StreamSpec, Topology

REQUESTS = "REQUESTS"
EVALUATIONS = "EVALUATIONS"
VERDICTS = "VERDICTS"
EPISODES = "EPISODES"
STEPS = "STEPS"
FACTS = "FACTS"
BLOBS = "BLOBS"
DEAD = "DEAD"

POLICY = "policy"
ACTORS = "actors"
HELD = "held"
SAMPLER = "sampler"

VERDICT_MAX_AGE_S = 24 * 3600.0
"""How long a verdict serves as a cache."""

MAX_DELIVERIES = "io.nats.jetstream.advisory.v1.max_deliver"
TERMINATED = "io.nats.jetstream.advisory.v1.terminated"


def topology(
    run_id: str,
    *,
    device_classes: Sequence[tuple[str, str]],
    ack_wait_s: float,
    dead_after_s: float,
    max_worker_deaths: int,
    verdict_max_age_s: float = VERDICT_MAX_AGE_S,
) -> Topology:
    """The table for one run. `device_classes` holds the (backend, device class) pairs that may judge for it."""
    if not device_classes:
        raise ValueError("no (backend, device class) pair may judge for this run: name at least one")

    def stream(name: str, *patterns: str, **kept: bool | float) -> StreamSpec:
        full = tuple(f"km.{run_id}.{pattern}" for pattern in patterns)
        return StreamSpec(name=subjects.stream(run_id, name), subjects=full, **kept)  # type: ignore[arg-type]

    queues = [stream(REQUESTS, "request.*", work_queue=True, unique=True)]
    queues += [stream(EVALUATIONS, "evaluate.*.*.*", work_queue=True, unique=True)]
    advisories = tuple(subject for queue in queues for subject in advisory_subjects(queue.name))
    dead = stream(DEAD, "dead.*")
    logs = [
        stream(VERDICTS, "verdict.*", latest=True, max_age_s=verdict_max_age_s),
        stream(EPISODES, "episode.*.*", unique=True),
        stream(STEPS, "step"),
        stream(FACTS, "fact.*"),
        stream(BLOBS, "blob.*"),
        msgspec.structs.replace(dead, subjects=dead.subjects + advisories),
    ]
    # What ends a message is the reaper's count of workers that died on it, and the worker's own count of failures. This
    # bounds what neither sees, hours away: naks for other reasons must not get there. It is announced in DEAD.
    backstop = 1000 * max_worker_deaths
    consumers = [
        ConsumerSpec(
            stream=queues[0].name,
            name=subjects.rollout_consumer(),
            filter=f"km.{run_id}.request.*",
            ack_wait_s=ack_wait_s,
            max_deliver=backstop,
        )
    ]
    consumers += [
        ConsumerSpec(
            stream=queues[1].name,
            name=subjects.evaluate_consumer(backend, device_class),
            filter=subjects.evaluate_all(run_id, backend, device_class),
            ack_wait_s=ack_wait_s,
            max_deliver=backstop,
        )
        for backend, device_class in sorted(set(device_classes))
    ]
    buckets = (
        BucketSpec(name=subjects.bucket(run_id, POLICY)),
        BucketSpec(name=subjects.bucket(run_id, ACTORS), ttl_s=dead_after_s),
        BucketSpec(name=subjects.bucket(run_id, HELD)),
        BucketSpec(name=subjects.bucket(run_id, SAMPLER)),
    )
    return Topology(streams=tuple(queues + logs), consumers=tuple(consumers), buckets=buckets)


def advisory_subjects(stream: str) -> tuple[str, ...]:
    """Where the broker says that it gave a message of this stream up (deliveries used up, or terminated)."""
    return tuple(f"$JS.EVENT.ADVISORY.CONSUMER.{kind}.{stream}.*" for kind in ("MAX_DELIVERIES", "MSG_TERMINATED"))


class Advisory(msgspec.Struct, frozen=True):
    """The broker's own announcement in DEAD that it gave a message up. After MAX_DELIVERIES the message still stands in
    its queue: `Broker.remove(stream, stream_seq)` takes it out."""

    type: str
    stream: str
    consumer: str
    stream_seq: int
    deliveries: int


_advisory = msgspec.json.Decoder(Advisory)


def advisory(data: bytes) -> Advisory | None:
    """The advisory behind a record of DEAD, or None when it is something else (a `messages.Dead`)."""
    try:
        return _advisory.decode(data)
    except msgspec.DecodeError:
        return None
