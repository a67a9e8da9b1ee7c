"""What a learner is made of, from a run's config and from a checkpoint; a replay of one is made of the same parts."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from bus import facts
from bus.run_bus import RunBus
from configs.load import ConfigError
from core.checkpoints import store
from core.episodes.metrics import batch_metrics
from core.flow.collector import CollectorState, Group

if TYPE_CHECKING:
    from configs.schema import RunConfig
    from core.training.intake import Intake
    from core.training.settings import TrainerSettings
    from core.training.trainer import Trainer
    from core.weights.outgoing import Outgoing

log = structlog.get_logger()


class Fenced(RuntimeError):
    """Another learner has taken over."""


class LostCheckpoints(ConfigError):
    """The run can't go on from what its folder holds."""


def collector_state(extra: store.Extra) -> CollectorState:
    """The collector as a checkpoint remembers it."""
    state = msgspec.json.decode(extra.notes["collector"], type=CollectorState)
    return msgspec.structs.replace(state, consumed=extra.consumed)


async def where_to_go_on(bus: RunBus, folder: Path, made: int) -> tuple[Path | None, CollectorState | None]:
    """The newest whole checkpoint in `folder` and its collector; damaged ones are set aside. Raises LostCheckpoints
    when the episodes behind it are gone, of a run that made so many steps: they are kept from the oldest one on."""
    await asyncio.to_thread(store.sweep, folder)
    for step, path, why in await asyncio.to_thread(store.set_damaged_aside, folder):
        log.error("checkpoint refused", why=why, put=path.name, fact=facts.CHECKPOINT_REFUSED)
        await bus.fact(facts.CHECKPOINT_REFUSED, step=step, folder=str(path), reason=why)
    checkpoint = await asyncio.to_thread(store.latest_committed, folder)
    state = None if checkpoint is None else collector_state(await asyncio.to_thread(store.read_extra, checkpoint))
    kept_from = (await bus.broker.stream_state(bus.names.episodes)).first_seq
    if (state.position if state is not None else 1) < kept_from:
        raise LostCheckpoints(
            f"run {bus.run_id!r} has made {made} steps, but {folder} holds "
            f"{checkpoint.name if checkpoint is not None else 'no checkpoint'}, and the episodes behind it are "
            f"gone: put the run's newest checkpoints back there, or begin another run (run.name)"
        )
    return checkpoint, state


def intake(config: "RunConfig", groups: Sequence[Group], version: int, prepare: Callable[..., Any]) -> "Intake":
    """What a step of the policy of `version` makes of these groups (`core.training.intake`). prepare: as there."""
    from core.training.intake import take_in

    return take_in(
        groups,
        version,
        staleness_bound=config.staleness_bound,
        credit=config.episodes.credit,
        gamma=config.episodes.gamma,
        prepare=prepare,
    )


def step_figures(config: "RunConfig", intake: "Intake") -> dict[str, float]:
    """What a step's record says of its episodes, beside the trainer's numbers."""
    episodes = [episode for group in intake.groups for episode in group.episodes.values()]
    return batch_metrics(episodes, intake.version, max_turns=config.episodes.max_turns, left_out=intake.left_out)


def outgoing(config: "RunConfig", trainer: "Trainer") -> "Outgoing":
    """Have `trainer` hand weights over as the config says, and answer with what does it. Raises ValueError or OSError
    when this machine can't."""
    import os
    import socket

    from core.weights.outgoing import Outgoing

    weights = config.weights
    assert weights.transport != "filesystem", "weights in a folder need no sender"
    if trainer.device.type != "cuda" and weights.transport != "adapter":
        raise ValueError(
            f"weights.transport = {weights.transport!r} needs a GPU, but the learner found none: set weights.transport "
            f"= 'filesystem'"
        )
    beyond = config.bus.url or os.environ.get("NATS_URL")  # else the bus itself is on loopback
    host = weights.host or (socket.gethostname() if beyond else "127.0.0.1")
    trainer.outgoing = Outgoing(
        weights.transport, device=trainer.device, host=host, ports=weights.ports, timeout_s=weights.apply_timeout_s
    )
    return trainer.outgoing


def trainer_settings(config: "RunConfig") -> "TrainerSettings":
    """The trainer's own settings from a run's config; a short run warms up over its first half at most."""
    from core.training.settings import TrainerSettings

    learner = config.learner.model_dump()
    learner["warmup_steps"] = min(config.learner.warmup_steps, config.run.steps // 2)
    fields = {
        "model": config.model.path,
        "revision": config.model.revision,
        "dtype": config.model.dtype,
        "seed": config.run.seed,
        "temperature": config.rollout.temperature,
        "context_tokens": config.model.context_tokens,
        "constant_tokens": config.rollout.max_new_tokens,
        "schedule_steps": config.run.steps,
        "credit": config.episodes.credit,
    }
    return msgspec.convert({**fields, **learner}, TrainerSettings)
