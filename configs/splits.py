"""Which ways there are to split cards, or processes, between the learner, generators and judges; and the settings that
make one of them. Pure; what each would do is `core.flow.plan`'s to say.

Cards are laid out as the recipes do it: the learner's ranks take the first ones, generators the next, judges the last.
"""

import json
from collections.abc import Mapping
from typing import Any

from configs.cards import taken
from configs.schema import RunConfig
from core.flow.plan import Split


def cards_of(config: RunConfig, kind: str) -> set[int]:
    """Cards that the actors of a kind take under `kernelmill up`, of as many as the settings name."""
    named = [*config.rollout.cards, *config.judge.cards]
    seen = max(max(named, default=0) + 1, config.learner.ranks, config.rollout.vllm.tensor_parallel)
    return {card for name, cards in taken(config, seen).items() if name.startswith(kind) for card in cards}


def judges_apart(config: RunConfig) -> int:
    """Cards that judges have for themselves; 0 where they have none, or share theirs."""
    mine, others = cards_of(config, "evaluator"), cards_of(config, "learner") | cards_of(config, "generator")
    return 0 if mine & others else len(mine)


def own(config: RunConfig, generators: int, workers: int) -> Split:
    """The split of a run in which so many generators and judging processes were at work."""
    return Split(config.learner.ranks, generators, workers, judges_apart(config))


def on_cards(config: RunConfig, own: Split, cards: int, fewest_ranks: int) -> list[Split]:
    """All splits of exactly so many cards: a learner of `fewest_ranks` at least, whole generators, and cards for judges
    with as many processes on each as the run had. Judges that shared cards may go on to; those on CPUs have none."""
    size = config.rollout.vllm.tensor_parallel if config.rollout.engine == "vllm" else 1
    judged_on = own.judge_cards or len(cards_of(config, "evaluator"))
    found = []
    for judges in range(0 if own.judge_cards == 0 else 1, cards if judged_on else 1):
        workers = round(own.workers / judged_on * judges) if judges else own.workers
        for ranks in range(fewest_ranks, cards - judges):
            generators, odd = divmod(cards - judges - ranks, size)
            if generators and not odd:
                found.append(Split(ranks, generators, max(1, workers), judges))
    return found


def fewest_cards(config: RunConfig, own: Split, fewest_ranks: int) -> int:
    size = config.rollout.vllm.tensor_parallel if config.rollout.engine == "vllm" else 1
    return fewest_ranks + size + (1 if own.judge_cards else 0)


def on_processes(own: Split, processes: int) -> list[Split]:
    """All splits of exactly so many processes at work; the learner's stay as they were."""
    rest = processes - own.ranks
    return [Split(own.ranks, rest - workers, workers) for workers in range(1, rest)]


def settings(config: RunConfig, split: Split, on_cards: bool) -> dict[str, Any]:
    """The settings by dotted name under which `kernelmill up` makes this split."""
    evaluators = config.local.evaluators
    if not evaluators or split.workers % evaluators or (not on_cards and split.workers < evaluators):
        evaluators = 1
    found: dict[str, Any] = {"local.generators": split.generators, "local.evaluators": evaluators}
    found["judge.workers"] = max(1, split.workers // evaluators)
    if not on_cards:
        return found
    size = config.rollout.vllm.tensor_parallel if config.rollout.engine == "vllm" else 1
    last = split.ranks + split.generators * size
    found |= {"learner.ranks": split.ranks, "rollout.cards": list(range(split.ranks, last))}
    if config.judge.device_class != "cpu":
        shared = found["rollout.cards"][: split.workers]
        found["judge.cards"] = list(range(last, last + split.judge_cards)) or shared
    if config.weights.transport == "ipc":  # generators are on cards of their own now
        found["weights.transport"] = "nccl"
    return found


def changed(config: RunConfig, values: Mapping[str, Any]) -> RunConfig:
    """The config with these settings. Raises pydantic's ValidationError."""
    resolved = config.model_dump(mode="json")
    for name, value in values.items():
        section, _, key = name.partition(".")
        resolved[section][key] = value
    return RunConfig.model_validate(resolved)


def toml(values: Mapping[str, Any]) -> str:
    """Settings by dotted name as lines of a recipe."""
    sections: dict[str, list[str]] = {}
    for name, value in sorted(values.items()):
        section, _, key = name.partition(".")
        sections.setdefault(section, []).append(f"{key} = {json.dumps(value)}")
    return "\n".join("\n".join([f"[{section}]", *lines]) for section, lines in sections.items())
