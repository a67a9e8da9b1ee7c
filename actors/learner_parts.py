"""What a learner is made of, from a run's config and from a checkpoint."""

from typing import TYPE_CHECKING

import msgspec

from core.checkpoints import store
from core.flow.collector import CollectorState

if TYPE_CHECKING:
    from configs.schema import RunConfig
    from core.training.settings import TrainerSettings
    from core.training.trainer import Trainer
    from core.weights.outgoing import Outgoing


def collector_state(extra: store.Extra) -> CollectorState:
    """The collector as a checkpoint remembers it."""
    state = msgspec.json.decode(extra.notes["collector"], type=CollectorState)
    return msgspec.structs.replace(state, consumed=extra.consumed)


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
