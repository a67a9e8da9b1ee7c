"""What the topology table means in nats-server's own words, and the calls that create and compare it.

Settings are created explicitly and compared field by field, since the server keeps an existing consumer's settings
silently. Only what the table states is compared; the server's own defaults may change with its version.
"""

import asyncio
from collections.abc import Awaitable, Iterable
from typing import Any

import msgspec

from bus.broker import BucketSpec, BusError, ConsumerSpec, Missing, StreamSpec, Topology, TopologyDrift
from bus.connection import Connection

STORED = "stored"
"""The server announces what it stored in a log on `stored.<stream>.<subject>`; readers and subscribers wait for that.
With the payload for streams that keep the newest per key, whose subscribers want it at once, elsewhere without."""

_DUPLICATE_WINDOW_S = 60.0
"""A publish that is repeated because its answer was lost is recognised for so long."""
_MARKER_S = 3600
"""How long the mark of an expired key stands, for watchers that were away."""
_MAX_WAITING = 8192
"""Workers that may wait at one consumer at the same time."""
_API_S = 10.0


class ApiError(BusError):
    """The server refused a call. `code` is its JetStream error number."""

    def __init__(self, what: str, code: int, description: str) -> None:
        super().__init__(f"{what}: {description} ({code})")
        self.code = code


_NOT_FOUND = (10059, 10014)
"""Stream, consumer."""


async def call(connection: Connection, subject: str, body: dict[str, Any], what: str) -> dict[str, Any]:
    """One call of the server's JetStream API. Raises Missing, ApiError, TimeoutError."""
    deadline = asyncio.get_running_loop().time() + _API_S
    data = msgspec.json.encode(body) if body else b""
    reply = await connection.request(f"$JS.API.{subject}", data, deadline=deadline, what=what)
    answer: dict[str, Any] = msgspec.json.decode(reply.data)
    error = answer.get("error")
    if error:
        code, description = error.get("err_code", error.get("code", 0)), error.get("description", "")
        raise Missing(f"{what}: {description}") if code in _NOT_FOUND else ApiError(what, code, description)
    return answer


async def ensure(connection: Connection, topology: Topology) -> None:
    """Create what is missing; raise TopologyDrift for what differs."""
    configs = [stream_config(spec) for spec in topology.streams] + [bucket_config(spec) for spec in topology.buckets]
    await _all(_ensure_stream(connection, config) for config in configs)
    await _all(_ensure_consumer(connection, spec) for spec in topology.consumers)


async def _all(calls: Iterable[Awaitable[None]]) -> None:
    """All of them, at the same time; then the first error, if there was one."""
    for result in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


async def _ensure_stream(connection: Connection, config: dict[str, Any]) -> None:
    name = config["name"]
    found = await _create(connection, f"STREAM.INFO.{name}", f"STREAM.CREATE.{name}", config, f"stream {name}")
    _compare(f"stream {name}", config, found["config"])


async def _ensure_consumer(connection: Connection, spec: ConsumerSpec) -> None:
    config = consumer_config(spec)
    what = f"consumer {spec.name} of {spec.stream}"
    info = f"CONSUMER.INFO.{spec.stream}.{spec.name}"
    create = f"CONSUMER.CREATE.{spec.stream}.{spec.name}.{spec.filter}"
    body = {"stream_name": spec.stream, "config": config, "action": "create"}
    found = await _create(connection, info, create, body, what)
    _compare(what, config, found["config"])


async def _create(connection: Connection, info: str, create: str, body: dict[str, Any], what: str) -> dict[str, Any]:
    try:
        return await call(connection, info, {}, f"looking for {what}")
    except Missing:
        pass
    try:
        return await call(connection, create, body, f"creating {what}")
    except ApiError as error:
        # Somebody else created it in between: then it is there to be compared.
        if error.code not in (10058, 10148, 10013):
            raise
    return await call(connection, info, {}, f"looking for {what}")


def _compare(what: str, wanted: dict[str, Any], got: dict[str, Any]) -> None:
    # The server leaves fields out that are empty, false or zero.
    differences = [
        f"{key} is {got.get(key)!r}, the table says {value!r}"
        for key, value in wanted.items()
        if _stated(got.get(key)) != _stated(value)
    ]
    if differences:
        raise TopologyDrift(
            f"{what} exists with other settings: {'; '.join(differences)}. Use the settings it was made with, or give "
            "the run another name"
        )


def _stated(value: Any) -> Any:
    """A setting without what says nothing."""
    return {k: v for k, v in value.items() if v} if isinstance(value, dict) else value or None


def stream_config(spec: StreamSpec) -> dict[str, Any]:
    if spec.unique and spec.latest:
        raise ValueError(f"stream {spec.name}: unique refuses a second message, latest replaces the first; choose one")
    config = {
        "name": spec.name,
        "subjects": list(spec.subjects),
        "retention": "workqueue" if spec.work_queue else "limits",
        # Full means that the publisher waits, and not that something accepted is thrown away.
        "discard": "old" if spec.latest else "new",
        "discard_new_per_subject": spec.unique,
        "max_msgs_per_subject": 1 if spec.unique or spec.latest else -1,
        "max_msgs": spec.max_messages,
        "max_bytes": spec.max_bytes,
        "max_age": _ns(spec.max_age_s),
        "duplicate_window": _ns(_window_s(spec.max_age_s)),
        "storage": "file",
        "num_replicas": 1,
        "allow_direct": True,
    }
    return config if spec.work_queue else {**config, "republish": _republish(spec.name, payload=spec.latest)}


def bucket_config(spec: BucketSpec) -> dict[str, Any]:
    """A bucket in the form that all NATS clients know, so that their tools can read it."""
    name = bucket_stream(spec.name)
    config = {
        "name": name,
        "subjects": [f"$KV.{spec.name}.>"],
        "max_msgs_per_subject": spec.history,
        "discard": "new",
        "max_age": _ns(spec.ttl_s),
        "duplicate_window": _ns(_window_s(spec.ttl_s)),
        "storage": "file",
        "num_replicas": 1,
        "allow_direct": True,
        "allow_rollup_hdrs": True,
        "deny_delete": True,
        "allow_msg_ttl": True,
        "republish": _republish(name),
    }
    return {**config, "subject_delete_marker_ttl": _ns(_MARKER_S)} if spec.ttl_s else config


def consumer_config(spec: ConsumerSpec) -> dict[str, Any]:
    return {
        "durable_name": spec.name,
        "name": spec.name,
        "filter_subject": spec.filter,
        "deliver_policy": "all",
        "ack_policy": "explicit",
        "replay_policy": "instant",
        "ack_wait": _ns(spec.ack_wait_s),
        "max_deliver": spec.max_deliver,
        "max_ack_pending": spec.max_ack_pending,
        "max_waiting": _MAX_WAITING,
    }


def bucket_stream(bucket: str) -> str:
    return f"KV_{bucket}"


def _republish(stream: str, payload: bool = False) -> dict[str, Any]:
    return {"src": ">", "dest": f"{STORED}.{stream}.>", "headers_only": not payload}


def _window_s(max_age_s: float) -> float:
    return min(_DUPLICATE_WINDOW_S, max_age_s) if max_age_s else _DUPLICATE_WINDOW_S


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
