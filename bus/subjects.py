"""Every name on the bus: subjects, streams, consumers and buckets. All of them start with the run's id.

The key of a message is the last part of its subject, so that a stream with one message per subject is a set of keys.
Keys and ids are lower-case letters, digits, '-' and '_' (`core.identity` makes them); anything else is refused here,
since a '.', '*' or '>' would change where a message goes.
"""

import re

_PART = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_RUN = re.compile(r"[a-z0-9][a-z0-9-]{0,60}")


def request(run_id: str, group_id: str) -> str:
    return f"km.{_run(run_id)}.request.{_part('group id', group_id)}"


def evaluate(run_id: str, backend: str, device_class: str, candidate_key: str) -> str:
    """Backend and device class are in the subject, so that work only reaches evaluators of that hardware."""
    return f"km.{_run(run_id)}.evaluate.{_pool(backend, device_class)}.{_part('candidate key', candidate_key)}"


def evaluate_all(run_id: str, backend: str, device_class: str) -> str:
    """The filter for all work of one backend and device class."""
    return f"km.{_run(run_id)}.evaluate.{_pool(backend, device_class)}.*"


def verdict(run_id: str, candidate_key: str) -> str:
    return f"km.{_run(run_id)}.verdict.{_part('candidate key', candidate_key)}"


def verdicts(run_id: str) -> str:
    """All verdicts of a run."""
    return f"km.{_run(run_id)}.verdict.*"


def episode(run_id: str, group_id: str, index: int) -> str:
    return f"km.{_run(run_id)}.episode.{_part('group id', group_id)}.{int(index)}"


def step(run_id: str) -> str:
    """One subject for the whole run: compare-and-set on it is what fences a learner that was replaced."""
    return f"km.{_run(run_id)}.step"


def fact(run_id: str, kind: str) -> str:
    return f"km.{_run(run_id)}.fact.{_part('kind of fact', kind)}"


def blob(run_id: str, name: str) -> str:
    return f"km.{_run(run_id)}.blob.{_part('blob', name)}"


def dead(run_id: str, what: str) -> str:
    return f"km.{_run(run_id)}.dead.{_part('kind of dead letter', what)}"


def stream(run_id: str, name: str) -> str:
    """The stream that the table of `bus.topology` calls `name`, e.g. `EPISODES`."""
    return f"{_run(run_id)}_{_part('stream', name)}"


def bucket(run_id: str, name: str) -> str:
    """The bucket that the table calls `name`, e.g. `policy`."""
    return f"{_run(run_id)}_{_part('bucket', name)}"


def bucket_key(key: str) -> str:
    """`key` if it can be one: parts with dots in between."""
    if not all(_PART.fullmatch(part) for part in key.split(".")):
        raise ValueError(f"key {key!r} can't be used in a bucket: use letters, digits, '-' and '_', dots in between")
    return key


def rollout_consumer() -> str:
    return "rollout"


def evaluate_consumer(backend: str, device_class: str) -> str:
    return f"evaluate-{_part('backend', backend)}-{_part('device class', device_class)}"


def last_part(subject: str) -> str:
    """The key that a subject ends with."""
    return subject.rsplit(".", 1)[-1]


def pattern(subject: str) -> str:
    """`subject` if one can subscribe to it: parts, `*` for any part, `>` for all the rest."""
    *parts, last = subject.split(".")
    if not all(part == "*" or _PART.fullmatch(part) for part in parts) or not (
        last in ("*", ">") or _PART.fullmatch(last)
    ):
        raise ValueError(f"can't subscribe to {subject!r}: use whole parts, '*' for any one, '>' for all the rest")
    return subject


def matches(covering: str, subject: str) -> bool:
    """Is `subject` covered by the pattern `covering`? `*` stands for one part, a last `>` for one or more."""
    wanted, parts = covering.split("."), subject.split(".")
    for i, want in enumerate(wanted):
        if want == ">":
            return len(parts) > i
        if i >= len(parts) or want not in ("*", parts[i]):
            return False
    return len(parts) == len(wanted)


def _pool(backend: str, device_class: str) -> str:
    return f"{_part('backend', backend)}.{_part('device class', device_class)}"


def _run(run_id: str) -> str:
    if not _RUN.fullmatch(run_id):
        raise ValueError(f"run id {run_id!r} can't name subjects: use lower-case letters, digits and '-'")
    return run_id


def _part(what: str, value: str) -> str:
    if not _PART.fullmatch(value):
        raise ValueError(
            f"{what} {value!r} can't be part of a subject: use letters, digits, '-' and '_', 1 to 128 long"
        )
    return value
