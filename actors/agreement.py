"""All actors of a run mean the same run: the first one states what defines it, every later one must agree."""

import json
import os
from typing import Any

from bus.broker import SequenceConflict
from bus.run_bus import RunBus
from configs.load import ConfigError
from configs.schema import RunConfig
from core.run_folder import RunFolder


async def agree_on_config(bus: RunBus, config: RunConfig) -> None:
    """Raises ConfigError with the first difference to what the run was started with."""
    mine = config.identity()
    try:
        await bus.broker.update(bus.names.sampler, "config", json.dumps(mine, sort_keys=True).encode(), 0)
        return
    except SequenceConflict:
        entry = await bus.broker.get(bus.names.sampler, "config")
    theirs = json.loads(entry.value) if entry and entry.value else {}
    if found := differences(mine, theirs):
        where, here, there = found[0]
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise ConfigError(
            f"run {bus.run_id!r} was started with another config: {where} is {there} there and {here} here{more}; "
            "use the run's own config, or another run.name"
        )


def keep_config(folder: RunFolder, config: RunConfig) -> None:
    """Write the config into a run folder that has none: reports, the ledger and `up` read it there."""
    if folder.config.exists():
        return
    folder.root.mkdir(parents=True, exist_ok=True)
    whole = folder.root / f".config-{os.uname().nodename}-{os.getpid()}"
    whole.write_text(without_token(config).model_dump_json(indent=2))
    whole.replace(folder.config)  # whole or not at all: others open the same folder


def without_token(config: RunConfig) -> RunConfig:
    """The token stands in run.json, which only this user may read, and nowhere else."""
    return config.model_copy(update={"bus": config.bus.model_copy(update={"token": ""})})


def differences(mine: Any, theirs: Any, where: str = "") -> list[tuple[str, str, str]]:
    """(dotted name, mine, theirs) of everything that differs, in order of the names."""
    if isinstance(mine, dict) and isinstance(theirs, dict):
        found = []
        for key in sorted({*mine, *theirs}):
            found += differences(mine.get(key), theirs.get(key), f"{where}.{key}" if where else key)
        return found
    return [] if mine == theirs else [(where, repr(mine), repr(theirs))]
