"""What both trainers' options need alike, above all arithmetic: theirs count rollout batches of samples or prompts,
ours groups and optimizer updates."""

from configs.importing.reading import Left, Reading


def model_path(r: Reading, name: str, note: str) -> None:
    """model.path, without which no recipe loads: as it is written, where the script alone does not tell it."""
    text = r.written(name)
    if text and r.unsure(name):
        r.set("model.path", text, note=f"{name}, {r.unsure(name)}: write the folder here")
        r.unknown(name)
    elif text:
        r.set("model.path", text, name, note=note)
    else:
        r.leave(name, "it is empty unless the environment sets it")


def members(r: Reading, name: str, size: int | None) -> int:
    """Episodes of a group. One alone has nothing to be compared with, so it stays ours where a baseline needs more."""
    baseline = r.settings.get("learner.baseline")
    if size is not None and (size >= 2 or (baseline is not None and baseline.value == "none")):
        r.set("sampler.group_size", size, name, note="episodes of one task, each of up to episodes.max_turns turns")
        return size
    if r.bad(name):
        r.set("sampler.group_size", size, name)
        return 1
    why = "a group of one has advantage 0 with a baseline: sampler.group_size stays at 8"
    r.leave(name, why)
    if not r.has(name):
        r.left.append(Left(f"{r.theirs}'s default of {name}, {size}", why))
    return max(size or 1, 1)


def batches(
    r: Reading, rollout: int | None, rollout_name: str, samples: int | None, size: int, made: tuple[str, ...]
) -> int | None:
    """Updates on one rollout batch of `rollout` prompts, each on so many `samples`; sets groups_per_step. None where
    the script does not say it, or not in whole groups."""
    if r.bad(rollout_name, *made):
        r.set("sampler.groups_per_step", samples, *made, rollout_name)
        return None
    if not samples or samples < 0:
        r.leave(rollout_name, "nothing says how many of it an update trains on: set sampler.groups_per_step")
        return None
    if samples % size:
        for name in made:
            r.leave(name, f"{samples} samples are no whole number of groups of {size}: set sampler.groups_per_step")
        return None
    groups = samples // size
    what = f"{samples} samples / {size} of a group" if size > 1 else f"{samples} prompts"
    note = what if rollout is None else f"{what}; there are no rollout batches ({rollout} prompts there)"
    r.set("sampler.groups_per_step", groups, *made, rollout_name, note=note)
    if rollout is None:
        return None
    if rollout % groups:
        r.leave(rollout_name, f"{rollout} prompts are no whole number of updates on {groups}: rounded down")
    return max(rollout // groups, 1)


def steps(r: Reading, name: str, updates: int | None) -> None:
    """run.steps, from a number of rollout batches."""
    if (rounds := r.whole(name)) is None:
        if r.bad(name):
            r.set("run.steps", None, name)
    elif updates is None:
        r.leave(name, "it counts rollout batches, and how many updates are made on one is not known: set run.steps")
    else:
        note = f"updates: {rounds} rollout batches, {updates} to each"
        r.set("run.steps", rounds * updates, name, note=note)


def staleness(r: Reading, updates: int | None, ahead: bool, how: str, *names: str) -> None:
    """sampler.max_staleness of a trainer that samples in step with its updates, or one rollout batch ahead of them."""
    if updates is None:
        r.left.append(Left("sampler.max_staleness", f"{how}, of unknown size: it stays at 2"))
        return
    how = f"{how}, one rollout batch ahead" if ahead else f"{how}, synchronous: 1 or 2 keeps cards busy"
    note = f"{how}; {updates} update{'s' * (updates != 1)} to a batch"
    r.set("sampler.max_staleness", updates - 1 + updates * ahead, *names, note=note)


def every(r: Reading, name: str, key: str, updates: int | None) -> None:
    """An interval that counts rollout batches there and updates here; below 1 it is off."""
    if (count := r.whole(name)) is None:
        if r.bad(name):
            r.set(key, None, name)
        return
    if count < 1:
        r.leave(name, "it is off there" + ("; here it is every 10 updates unless set" if "checkpoint" in key else ""))
        return
    if updates is None:
        r.leave(name, f"it counts rollout batches, and how many updates are made on one is not known: set {key}")
        return
    note = f"updates: {count} rollout batches, {updates} to each" if updates > 1 else "updates"
    r.set(key, count * updates, name, note=note)


def nodes(r: Reading, hosts_name: str, cards_name: str) -> int | None:
    """Ranks of the learner, or None where the script's cards are unknown or on several hosts."""
    hosts, cards = r.whole(hosts_name, 1), r.whole(cards_name)
    if hosts is None or hosts > 1:
        why = "the learner's ranks are cards of one host: set learner.ranks"
        r.leave(hosts_name, why)
        r.leave(cards_name, why)
        return None
    if r.bad(hosts_name, cards_name):
        r.set("learner.ranks", None, hosts_name, cards_name)
        return None
    if cards is None:
        return None
    r.set("learner.ranks", cards, cards_name, hosts_name, note="FSDP2, without tensor or pipeline parallelism")
    return cards
