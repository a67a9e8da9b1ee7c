"""Which cards of one machine the learner, generators and evaluators of `kernelmill up` take; pure, no CUDA.

Cards are numbered as the supervisor sees them (CUDA_VISIBLE_DEVICES, else all, in PCI order). The learner's ranks take
the first ones, one each; `rollout.cards` and `judge.cards` name the others'. Who names none takes what it sees, from
the first on. Sharing is allowed: who measures waits until a card is quiet, and what was disturbed is measured again.
"""

from configs.schema import RunConfig


def taken(config: RunConfig, seen: int) -> dict[str, tuple[int, ...]]:
    """Actor -> its cards, of `seen` ones, for all that `kernelmill up` starts here; who takes none is not in it."""
    every = tuple(range(seen))
    size = config.rollout.vllm.tensor_parallel if config.rollout.engine == "vllm" else 1
    found = {"learner-0": every[: config.learner.ranks] if config.learner.device != "cpu" else ()}
    for number in range(config.local.generators):
        name = f"generator-{number}"
        found[name] = (config.rollout.cards_of(name) or every)[:size]
    if config.judge.device_class != "cpu":
        for number in range(config.local.evaluators):
            name = f"evaluator-{number}"
            found[name] = config.judge.cards_of(name) or every[: config.judge.workers]
    return {name: cards for name, cards in found.items() if cards}


def problem(config: RunConfig, seen: int) -> str:
    """Why these cards can't be had on a machine that shows `seen`, in one line; empty when they can."""
    local = config.local
    for setting, cards, counted in (
        ("rollout.cards", config.rollout.cards, local.generators),
        ("judge.cards", config.judge.cards, local.evaluators),
    ):
        if counted and cards and max(cards) >= seen:
            there = f"shows {seen}, 0 to {seen - 1}" if seen else "shows none"
            return f"{setting} = {list(cards)} names card {max(cards)}, but this machine {there}"
    judges = local.evaluators * config.judge.workers
    if judges and len(config.judge.cards) > judges:
        return (
            f"judge.cards = {list(config.judge.cards)}: {len(config.judge.cards)} cards, but local.evaluators = "
            f"{local.evaluators} with judge.workers = {config.judge.workers} use {judges} at most: raise judge.workers"
        )
    return _way_of_weights(config, seen)


def _way_of_weights(config: RunConfig, seen: int) -> str:
    """Why weights would come by the folder after every update, although another way is set."""
    everybody = taken(config, seen)
    first = everybody.get("learner-0", ())[:1]
    generators = {name: cards for name, cards in everybody.items() if name.startswith("generator")}
    transport = config.weights.transport
    beside = [name for name, cards in generators.items() if first and first[0] in cards]
    if transport == "nccl" and beside:
        return (
            f"weights.transport = 'nccl', but {beside[0]} takes card {first[0]}, which is the learner's: NCCL has no "
            f"two processes on one card. Name others in rollout.cards, or set weights.transport = 'ipc'"
        )
    if transport == "ipc" and first and generators and all(cards != first for cards in generators.values()):
        name, cards = next(iter(generators.items()))
        return (
            f"weights.transport = 'ipc' hands over memory of the learner's card {first[0]}, but {name} takes "
            f"{list(cards)}: set weights.transport = 'nccl', or rollout.cards = {list(first)}"
        )
    return ""


def shared_by(config: RunConfig, name: str, seen: int) -> str:
    """Of an evaluator: its cards that the learner or generators take too, in one line; empty when it shares none."""
    everybody = taken(config, seen)
    mine = set(everybody.get(name, ()))
    others = {
        other: sorted(mine & set(cards))
        for other, cards in everybody.items()
        if not other.startswith("evaluator") and mine & set(cards)
    }
    if not others:
        return ""
    told = ", ".join(f"{other} on {' and '.join(map(str, cards))}" for other, cards in others.items())
    return (
        f"judges on cards {sorted(mine)} beside {told}: measurements wait until a card is quiet, and are made again "
        f"where they were disturbed; judge.cards gives evaluators cards of their own"
    )


def numbered_by(config: RunConfig, kind: str) -> str:
    """The setting whose cards are parted among actors of a kind by the number at the end of their names; empty where
    each has the same."""
    if kind == "generator" and len(config.rollout.cards) >= 2 * config.rollout.vllm.tensor_parallel:
        return "rollout.cards"
    if kind == "evaluator" and len(config.judge.cards) > config.judge.workers:
        return "judge.cards"
    return ""
