"""What `kernelmill plan` found, in words and as JSON."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from configs import splits
from configs.cards import problem
from configs.schema import RunConfig
from core.flow import stages
from core.flow.plan import Assumed, Measured, Prediction, Split, core_s, reached

WORTH = 1.03
"""A split that is less faster than the run's own is not advised."""


@dataclass(frozen=True)
class Advice:
    folder: Path
    ran: RunConfig
    config: RunConfig
    """The recipe that is planned for: the run's own, or another one."""
    measured: Measured
    assumed: Assumed
    own: Prediction
    """Of the run's own split."""
    total: int
    on_cards: bool
    scaling_by: str
    """The run that the learner's scaling was measured with; empty where it was assumed."""
    best: list[Prediction]
    """The fastest first; empty where there is no way but the run's."""


def text(advice: Advice, shown: int | None) -> str:
    lines = [*_measured(advice), "", *_assumed(advice), ""]
    unit = "card" if advice.on_cards else "process"
    lines += [f"splits of {count(advice.total, unit)}, the fastest first"]
    rows = [_row(one) for one in advice.best[:shown]]
    if advice.own.split not in [one.split for one in advice.best[:shown]]:
        rows.append(_row(advice.own))
    places = [row[0] for row in rows].index(said(advice.own.split)) if rows else 0
    table = _table([["", "steps/h", "episodes/h", "limit", "idle: generation", "judging", "training"], *rows])
    lines += [line + ("   as it ran" if n == places + 1 else "") for n, line in enumerate(table)]
    if shown is not None and len(advice.best) > shown:
        lines.append(f"  … and {len(advice.best) - shown} more; all with --all")
    if advice.best:
        lines += ["", *_paste(advice)]
    return "\n".join(lines)


def _measured(advice: Advice) -> list[str]:
    m, own = advice.measured, advice.own.split
    a_generator = f"{m.generation_s:.2f} s in its engine per episode ({m.turns_per_episode:.1f} turns, "
    a_generator += f"{m.tokens_per_episode:.0f} tokens; {m.tokens_per_episode / m.generation_s:.0f} tokens/s"
    a_generator += f" with {m.sequences:.1f} sequences at once)" if m.sequences else ")"
    lines = [
        f"measured   {advice.folder}, steps {m.first_step + 1} to {m.last_step} in {m.wall_s:.0f} s: "
        f"{3600 * m.episodes_per_s / m.episodes_per_step:.0f} steps/h, {3600 * m.episodes_per_s:.0f} episodes/h",
        f"           generation   {count(own.generators, 'generator')}: {a_generator}",
    ]
    if m.judging_s and m.judged_per_episode:
        where = f" on {count(own.judge_cards, 'card')}" if own.judge_cards else ""
        lease = f"; {m.lease_s / m.judged_per_episode:.2f} s of it with the card to itself" if m.lease_s else ""
        lines.append(
            f"           judging      {count(own.workers, 'judging process')}{where}: "
            f"{m.judging_s / m.judged_per_episode:.2f} s per verdict, {m.judged_per_episode:.2f} verdicts per "
            f"episode{lease}"
        )
    memory = f", {m.peak_gib:.1f} GiB of a card" if m.peak_gib else ""
    lines += [
        f"           training     {count(own.ranks, 'rank')}: {m.learner_s:.2f} s per step of "
        f"{m.episodes_per_step:.0f} episodes{memory}",
        f"           publication  {m.publish_s:.2f} s per step; {m.exposed_s:.2f} s of a step waited for weights or "
        f"checkpoints",
    ]
    if limit := stages.words(m.busy):
        lines.append(f"           limit        {limit}")
    return lines + [f"           not measured: {line}" for line in missing(advice)]


def missing(advice: Advice) -> list[str]:
    m, lines = advice.measured, []
    if not m.judging_s:
        lines.append("judging: no evaluator of this run counted any, so it bounds nothing here")
    elif advice.ran.judge.device_class != "cpu" and not m.lease_s:
        lines.append("how long a card is kept for a measurement: more judging processes on a card may not help")
    if m.beside_s is None:
        lines.append(
            "how an engine's speed depends on its sequences: their number was too even, or times too uneven, to tell"
        )
    ran, config = advice.ran, advice.config
    for name, before, now in (
        ("model.path", ran.model.path, config.model.path),
        ("rollout.max_new_tokens", ran.rollout.max_new_tokens, config.rollout.max_new_tokens),
        ("episodes.max_turns", ran.episodes.max_turns, config.episodes.max_turns),
        ("judge.device_class", ran.judge.device_class, config.judge.device_class),
        ("rollout.engine", ran.rollout.engine, config.rollout.engine),
    ):
        if before != now:
            lines.append(f"the recipe's {name} = {now!r}: the run's was {before!r}, and these are its times")
    return lines


def _assumed(advice: Advice) -> list[str]:
    m, assumed, own = advice.measured, advice.assumed, advice.own.split
    share = min(1.0, reached(m, own, assumed))
    lines = [f"reaches {100 * share:.0f} % of what its slowest stage allows, as the run did with its own split"]
    if m.beside_s is not None and m.alone_s is not None:
        lines.append(
            f"an episode takes {m.alone_s:.2f} s in an engine, and {m.beside_s:.3f} s more for each sequence there "
            f"(a line through the run's own times); at most {assumed.open_episodes:.0f} episodes are open"
        )
    else:
        lines.append("twice the generators sample twice as much")
    lines.append("judging grows with its processes" + (", up to what its cards can measure" if m.lease_s else ""))
    if advice.on_cards:
        why = f"measured with {advice.scaling_by}" if advice.scaling_by else "--scaling"
        lines.append(f"twice the ranks are {2 * assumed.scaling:.3g} times as fast ({why})")
        shared = splits.cards_of(advice.ran, "learner") & splits.cards_of(advice.ran, "generator")
        if shared or (advice.ran.judge.device_class != "cpu" and not own.judge_cards):
            lines.append("stages that shared a card in the run take as long on cards of their own; less is likely")
    elif assumed.cores:
        an_episode = f"an episode takes {core_s(m, assumed.cores):.2f} s of one"
        lines.append(f"all processes share {assumed.cores:g} cores that nobody else uses (--cores); {an_episode}")
    return [("assumed    " if n == 0 else "           ") + line for n, line in enumerate(lines)]


def _row(one: Prediction) -> list[str]:
    idle = [f"{100 * one.idle[stage]:.0f} %" if stage in one.idle else "–" for stage in stages.STAGES[:3]]
    return [said(one.split), f"{3600 * one.steps_per_s:.0f}", f"{3600 * one.episodes_per_s:.0f}", one.limit, *idle]


def said(split: Split) -> str:
    judges = f"{split.workers} judging" + (f" on {count(split.judge_cards, 'card')}" if split.judge_cards else "")
    return f"  {count(split.ranks, 'rank')}, {count(split.generators, 'generator')}, {judges}"


def _table(rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]

    def cell(n: int, text: str) -> str:
        return text.ljust(widths[n]) if n in (0, 3) else text.rjust(widths[n])

    return ["  ".join(cell(n, text) for n, text in enumerate(row)) for row in rows]


def _paste(advice: Advice) -> list[str]:
    first = advice.best[0]
    gain = first.episodes_per_s / advice.own.episodes_per_s
    if gain < WORTH or first.split == advice.own.split:
        return [f"none is faster than the run's own split by more than {100 * (WORTH - 1):.0f} %"]
    values = splits.settings(advice.config, first.split, advice.on_cards)
    lines = [
        f"the first one, {gain:.2f} times as fast as the run's own split, in a recipe:",
        *splits.toml(values).split("\n"),
    ]
    if advice.on_cards and (why := problem(splits.changed(advice.config, values), advice.total)):
        lines.append(f"# not yet possible: {why}")
    return lines


def count(number: int, unit: str) -> str:
    many = f"{unit}es" if unit.endswith("s") else f"{unit}s"
    return f"{number} {unit if number == 1 else many}"


def as_dict(advice: Advice) -> dict[str, Any]:
    def told(one: Prediction) -> dict[str, Any]:
        return {
            **one.split._asdict(),
            "steps_per_h": 3600 * one.steps_per_s,
            "episodes_per_h": 3600 * one.episodes_per_s,
            "limit": one.limit,
            "idle": one.idle,
            "settings": splits.settings(advice.config, one.split, advice.on_cards),
        }

    return {
        "run": str(advice.folder),
        "splits": "cards" if advice.on_cards else "processes",
        "total": advice.total,
        "measured": {
            **msgspec.to_builtins(advice.measured),
            "episodes_per_h": 3600 * advice.measured.episodes_per_s,
            "limit": stages.limit(advice.measured.busy) or None,
        },
        "not_measured": missing(advice),
        "assumed": {
            **advice.assumed._asdict(),
            "reached": min(1.0, reached(advice.measured, advice.own.split, advice.assumed)),
        },
        "as_it_ran": told(advice.own),
        "predicted": [told(one) for one in advice.best],
    }
