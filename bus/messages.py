"""Every message on the bus, typed. MessagePack on the wire (msgspec), keyed by what it is about.

    Request      one group to play           sampler    -> generator   REQUESTS
    Evaluation   one candidate to judge      generator  -> evaluator   EVALUATIONS
    Judged       its terminal verdict        evaluator  -> generators  VERDICTS (also the cache)
    Ended        one episode, or tombstone   generator  -> learner     EPISODES
    Claim        one that is too large       generator  -> learner     EPISODES, the episode itself in a file
    Step         one optimizer update        learner    -> everyone    STEPS (compare-and-set)
    Fact         something that happened     everyone   -> recorder    FACTS
    Blob         a piece of something big    learner    -> generators  BLOBS
    Dead         work that was given up      reaper     -> people      DEAD
    Policy       which weights are current   learner    -> generators  KV policy
    Beat         an actor is alive           everyone   -> reaper      KV actors
    Cursor       where the sampler stands    sampler    -> sampler     KV sampler

Unknown fields are ignored and new fields have defaults, so old and new processes talk; wrong types, another schema
number and oversize are refused with a reason (`bus.codec`). Token arrays are raw bytes (`core.columns`), never lists.
"""

from typing import Any

import msgspec

from core.episodes.episode import Episode
from core.evaluation.verdict import Verdict
from core.flow.chain import GroupOutcome
from core.tasks.task import Task

SCHEMA = 1


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """What all messages carry."""

    run_id: str
    schema: int = SCHEMA
    trace: str = ""
    """The group id where there is one: follow it through logs, facts and episodes."""


class Request(Message, frozen=True, kw_only=True, tag="request"):
    """Play `size` episodes of a task. Key: group_id."""

    group_id: str
    admission: int
    """Counts up over the run; the learner's window is in these numbers."""
    task: Task
    size: int
    role: str = "generator"
    max_turns: int = 3
    seed: int = 0
    admitted_at: float = 0.0
    heldout: bool = False
    """Evaluate: all episodes by one policy version, answered by a `heldout` fact instead of messages on EPISODES."""
    version: int = -1
    """With `heldout`: the oldest policy version that may play it."""


class Evaluation(Message, frozen=True, kw_only=True, tag="evaluation"):
    """Judge one candidate. Key: candidate_key."""

    candidate_key: str
    task: Task
    candidate: str
    settings: dict[str, Any] = {}
    """The judging settings inside the key (`configs.schema.JudgeConfig.identity`)."""
    device_class: str = "cpu"
    asked_at: float = 0.0


class Judged(Message, frozen=True, kw_only=True, tag="judged"):
    """The one terminal verdict of a candidate key."""

    verdict: Verdict
    evaluator: str = ""


class Ended(Message, frozen=True, kw_only=True, tag="ended"):
    """One episode that ended, tombstones included. Key: group_id and index; a group is closed when `size` stand."""

    episode: Episode
    admission: int
    size: int
    generator: str = ""


class Claim(Message, frozen=True, kw_only=True, tag="claim"):
    """In the place of an `Ended` that is too large for a message: where it stands (`bus.claims`), and what is needed of
    it when that is lost."""

    file: str
    """Its name in the run folder's `episodes`."""
    sha256: str
    nbytes: int
    admission: int
    size: int
    task_id: str
    level: int = 1
    role: str = "generator"


class Step(Message, frozen=True, kw_only=True, tag="step"):
    """A record of the STEPS chain. `kind`:

    incarnation  a learner took over; everything of earlier incarnations after `step` is void
    step         one optimizer update was made: `step` is its number, `version` the policy after it
    rejected     groups without anything to train on were given up; `step` and `version` stay
    finished     the run reached its last step
    """

    kind: str
    incarnation: int
    step: int
    version: int
    groups: tuple[GroupOutcome, ...] = ()
    metrics: dict[str, float] = {}
    at: float = 0.0


class Fact(Message, frozen=True, kw_only=True, tag="fact"):
    """Something that happened, immutable. Kinds are listed in `bus.facts`."""

    kind: str
    actor: str
    at: float
    data: dict[str, Any] = {}


class Blob(Message, frozen=True, kw_only=True, tag="blob"):
    """One piece of bytes that are too many for a message: a policy's adapters. Pieces stand one after the other."""

    name: str
    """Equal for all pieces, and never given again."""
    number: int
    count: int
    data: bytes


class Dead(Message, frozen=True, kw_only=True, tag="dead"):
    """Work that was given up, with all that is needed to understand it."""

    stream: str
    subject: str
    reason: str
    deliveries: int
    payload: bytes
    at: float = 0.0


class Policy(Message, frozen=True, kw_only=True, tag="policy"):
    """The current weights. A generator is on `version` only after it answered with `fingerprint`."""

    version: int
    step: int
    folder: str
    """The version's folder; with a source it may come later, or be left out where copies are slower than steps."""
    fingerprint: str
    incarnation: int = 0
    config_hash: str = ""
    source: str = ""
    """A faster way to the same weights (`core.weights.incoming`), as long as the learner that wrote this lives."""


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery that an actor is working on; whoever sees the actor's death naks it by `reply`."""

    stream: str
    seq: int
    reply: str


class Beat(Message, frozen=True, kw_only=True, tag="beat"):
    """An actor is alive; the key in the bucket is kind.id and expires when beats stop."""

    kind: str
    actor: str
    pid: int
    host: str
    at: float
    version: int = -1
    """For generators: the policy version that is live here."""
    fingerprint: str = ""
    held: tuple[Held, ...] = ()
    gauges: dict[str, float] = {}
    life: str = ""
    """Another one for every process: containers give the same pid and host to the next."""


class Cursor(Message, frozen=True, kw_only=True, tag="cursor"):
    """Where the sampler stands; written with compare-and-set, so that two samplers can't both admit."""

    admissions: int
    epoch: int
    position: int
    config_hash: str
    state: dict[str, Any] = {}
    """The curriculum's own state."""


ALL: tuple[type[Message], ...] = (
    Request, Evaluation, Judged, Ended, Claim, Step, Fact, Dead, Policy, Beat, Cursor, Blob,
)  # fmt: skip
