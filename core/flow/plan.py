"""What a run would do with other numbers of generators, judging processes and learner ranks: a prediction, from what
its stages took.

Each stage has a capacity in episodes a second, and the least of them bounds the run. Episodes that may be open at once
are bounded as well (admission), and each is open for at least as long as it takes alone:

    generation  G generators, each of them one episode's engine time at a time       G / s
    judging     W processes; on C cards, of each of which one measures at a time     W / s,  C / lease
    training    episodes of a step over a step's time, of r ranks                    E / (learner(r) + exposed)
    staleness   N open episodes over the time that one is open                       N / time

An engine is faster the more sequences it has at once. Where a run had many and few, a line through its token times
gives both parts, `alone_s` (the tokens of an episode, nobody beside it) and `beside_s` (what each one beside it adds);
else engine time is taken to add up, and a generator more to be as good as the one before it.

The run's own rate over what this says of its own numbers is the share that was reached; every prediction is times that.
"""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from core.flow.stages import FULL


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Of the steps of a run that are neither its first nor its last ones. None: it was not measured."""

    first_step: int
    last_step: int
    wall_s: float
    episodes_per_step: float
    """That ended and were trained on or rejected."""
    open_episodes: int
    """That may be under way at once."""
    generators: float
    generation_s: float
    """Time of one generator's engine, per episode."""
    sequences: float | None
    """In an engine, in the mean of the time in which it had any."""
    tokens_per_episode: float
    turns_per_episode: float
    alone_s: float | None = None
    """Per episode, in an engine, with nobody beside it."""
    beside_s: float | None = None
    """Per episode and sequence in the engine, itself included."""
    workers: float
    judging_s: float | None
    """Time of one judging process, per episode."""
    judged_per_episode: float | None
    lease_s: float | None = None
    """Time in which a card was kept for a measurement, per episode."""
    judge_cards: int = 0
    """On which candidates were judged; 0 on CPUs."""
    ranks: int
    learner_s: float
    """Per step: making it."""
    exposed_s: float
    """Per step: the learner waited for weights or checkpoints to go out."""
    publish_s: float
    """From a step's end until its weights were announced."""
    busy: Mapping[str, float] = {}
    """Share of the time, of each stage."""
    core_s: float | None = None
    """Time of a core that all processes had, per episode."""
    peak_gib: float | None = None
    """On a rank's card."""
    state_gib: float | None = None
    """Of it all ranks together: masters, gradients, the optimizer's moments."""

    @property
    def episodes_per_s(self) -> float:
        return (self.last_step - self.first_step) * self.episodes_per_step / self.wall_s


class Split(NamedTuple):
    ranks: int
    generators: int
    workers: int
    """Judging processes, of all evaluators together."""
    judge_cards: int = 0


class Assumed(NamedTuple):
    scaling: float = 0.9
    """Twice the ranks are so much of twice as fast."""
    cores: float | None = None
    """All processes share so many; None where that is no bound, as on cards."""
    episodes_per_step: float | None = None
    """Another recipe's."""
    open_episodes: float | None = None


class Prediction(NamedTuple):
    split: Split
    episodes_per_s: float
    steps_per_s: float
    limit: str
    """A stage, `staleness`, `lease` (judging cards can't measure more) or `cores`."""
    idle: dict[str, float]
    """Share of each stage's capacity that is not used."""


def learner_s(measured: Measured, ranks: int, assumed: Assumed, episodes: float) -> float:
    """Seconds of a step of so many episodes, of so many ranks."""
    speed = (ranks / measured.ranks) ** (1 + math.log2(assumed.scaling))
    return measured.learner_s * episodes / measured.episodes_per_step / speed + measured.exposed_s


def scaling_of(one: Measured, other: Measured) -> float:
    """What two runs with other numbers of ranks say of `Assumed.scaling`, token by token; within its bounds, 0.5 to 1.

    Raises ValueError where both had as many."""
    if one.ranks == other.ranks:
        raise ValueError(f"both runs had {one.ranks} of a learner's ranks, so they don't tell what more would do")
    token_s = [run.learner_s / (run.episodes_per_step * run.tokens_per_episode) for run in (one, other)]
    doublings = math.log2(other.ranks / one.ranks)
    return min(1.0, max(0.5, 2 ** (math.log2(token_s[0] / token_s[1]) / doublings) / 2))


def bounds(measured: Measured, split: Split, assumed: Assumed) -> dict[str, float]:
    """Most episodes a second that each stage, and what else bounds a run, lets through."""
    episodes = assumed.episodes_per_step or measured.episodes_per_step
    step_s = learner_s(measured, split.ranks, assumed, episodes)
    alone_s, beside_s = (measured.alone_s or 0.0, measured.beside_s or measured.generation_s)
    found = {"generation": split.generators / beside_s, "training": episodes / step_s}
    elsewhere_s = step_s + measured.publish_s
    if measured.judging_s:
        found["judging"] = split.workers / measured.judging_s
        elsewhere_s += measured.judging_s
        if measured.lease_s and (cards := split.judge_cards or measured.judge_cards):
            found["lease"] = cards / measured.lease_s
    open_episodes = assumed.open_episodes or float(measured.open_episodes)
    found["staleness"] = _closed(open_episodes, found["generation"], alone_s, elsewhere_s)
    if assumed.cores:
        found["cores"] = assumed.cores / core_s(measured, assumed.cores)
    return found


def _closed(open_episodes: float, capacity: float, alone_s: float, elsewhere_s: float) -> float:
    """Episodes a second where so many are open: the rate x at which those in the engines (each of them for
    alone_s / (1 - x / capacity), since they slow each other down) and those elsewhere are all there may be."""
    if not alone_s:
        return open_episodes / elsewhere_s if elsewhere_s else math.inf
    # x * alone / (1 - x / capacity) + x * elsewhere = open: a quadratic; its smaller root lies below the capacity.
    a, b = elsewhere_s / capacity, alone_s + elsewhere_s + open_episodes / capacity
    return 2 * open_episodes / (b + math.sqrt(b * b - 4 * a * open_episodes))


def core_s(measured: Measured, cores: float) -> float:
    """Seconds of a core that an episode takes. Where they were not counted: those in which processes were busy. They
    are busy for longer than they compute where they share too few cores, but can't have had more than there was."""
    if measured.core_s is not None:
        return measured.core_s
    busy_s = measured.generation_s + (measured.judging_s or 0.0) + measured.learner_s / measured.episodes_per_step
    return min(busy_s, cores / measured.episodes_per_s)


def reached(measured: Measured, own: Split, assumed: Assumed) -> float:
    """The run's rate over the one that its own numbers allow."""
    alike = assumed._replace(episodes_per_step=None, open_episodes=None)
    return measured.episodes_per_s / min(bounds(measured, own, alike).values())


def predict(measured: Measured, own: Split, split: Split, assumed: Assumed) -> Prediction:
    """own: the run's split."""
    found = bounds(measured, split, assumed)
    share = min(1.0, reached(measured, own, assumed))
    bound = min(found, key=lambda name: found[name])
    limit, rate = bound, found[bound]
    if limit == "staleness" and rate >= FULL * found["generation"]:
        limit = "generation"
    idle = {stage: 1 - rate / found[stage] for stage in ("generation", "judging", "training") if stage in found}
    if "lease" in found:
        idle["judging"] = 1 - rate / min(found["judging"], found["lease"])
    episodes = assumed.episodes_per_step or measured.episodes_per_step
    return Prediction(split, share * rate, share * rate / episodes, limit, {k: max(0.0, v) for k, v in idle.items()})


def ranked(measured: Measured, own: Split, splits: Iterable[Split], assumed: Assumed) -> list[Prediction]:
    """The fastest first; of those that are about as fast, the one whose second busiest stage has most to spare."""

    def order(one: Prediction) -> tuple[float, float, Split]:
        spare = sorted(one.idle.values())
        return -float(f"{one.episodes_per_s:.2g}"), -(spare[1] if len(spare) > 1 else 0.0), one.split

    return sorted((predict(measured, own, split, assumed) for split in set(splits)), key=order)


def fewest_ranks(measured: Measured, card_gib: float | None) -> int:
    """Of the learner, that hold the model: what is sharded over all ranks and what every rank has, on cards of this
    size. Without a size, or where the parts are not known, as many as the run had."""
    if card_gib is None or measured.peak_gib is None or measured.state_gib is None:
        return measured.ranks
    each = max(0.0, measured.peak_gib - measured.state_gib / measured.ranks)
    ranks = 1
    while each + measured.state_gib / ranks > ROOM * card_gib and ranks < MOST_RANKS:
        ranks += 1
    return ranks


ROOM = 0.92
"""Of a card's memory, for what torch counts; the rest is the driver's and torch's own."""
MOST_RANKS = 1024


def line(points: Iterable[tuple[float, float, float]]) -> tuple[float, float] | None:
    """(a, b) of y = a + b x, by weighted least squares over (x, y, weight), where the points say it: enough of them,
    x spread enough, and neither part below 0."""
    kept = [(x, y, weight) for x, y, weight in points if weight > 0]
    total = math.fsum(weight for _, _, weight in kept)
    if len(kept) < LEAST_POINTS:
        return None
    mean_x = math.fsum(x * weight for x, _, weight in kept) / total
    mean_y = math.fsum(y * weight for _, y, weight in kept) / total
    spread = math.fsum(weight * (x - mean_x) ** 2 for x, _, weight in kept) / total
    if mean_x <= 0 or math.sqrt(spread) < LEAST_SPREAD * mean_x:
        return None
    slope = math.fsum(weight * (x - mean_x) * (y - mean_y) for x, y, weight in kept) / total / spread
    start = mean_y - slope * mean_x
    return (start, slope) if slope > 0 and start >= 0 else None


LEAST_POINTS = 8
LEAST_SPREAD = 0.2
"""Standard deviation of x over its mean."""
