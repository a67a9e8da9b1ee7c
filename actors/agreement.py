"""All actors of a run mean the same run: the first one states what defines it, every later one must agree.

What does not define it may be another on resume. The learner, of which there is one, tells so by a fact.
"""

import json
import os

import pydantic
import structlog

from bus import facts
from bus.broker import SequenceConflict
from bus.run_bus import RunBus
from configs.differences import differences, other_settings, told
from configs.load import ConfigError
from configs.schema import RunConfig
from core.run_folder import RunFolder

log = structlog.get_logger()


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


async def tell_other_settings(bus: RunBus, config: RunConfig, step: int) -> None:
    """What the run goes on with after `step` that it did not have before: a line in the log, and the fact that explains
    a break in its curves. The fact first: a death between the two tells it twice."""
    entry = await bus.broker.get(bus.names.sampler, "settings")
    if entry is not None and entry.value is not None:
        try:
            before = RunConfig.model_validate_json(entry.value)
        except pydantic.ValidationError:  # of a release with other settings: nothing to compare
            before = config
        if changes := other_settings(before, config):
            log.info(told(changes), step=step)
            await bus.fact(facts.OTHER_SETTINGS, step=step, changes=changes)
        elif before == config:
            return
    await bus.broker.put(bus.names.sampler, "settings", without_token(config).model_dump_json().encode())
