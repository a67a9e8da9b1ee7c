"""What a generator proves before it plays its first episode: engine and model give the same log-probs to the same ids.

The learner is another process, so its side is the model under transformers, on the CPU, with the weights of the very
version that the engine holds. They are read from the version's folder, which stands with every transport: where weights
come by card or network, the learner copies its first version there as well.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog

from bus.messages import Policy
from configs.schema import RunConfig, TaskSource
from core.clock import Clock
from core.generation import parity
from core.generation.lanes import Lanes, PinLost
from core.weights.filesystem import DamagedWeights

log = structlog.get_logger()
PROMPTS, COMPLETION_TOKENS = 4, 128
_AGAIN_S = 1.0


async def check_parity(
    lanes: Lanes, live: Callable[[], Policy], chat: Any, config: RunConfig, clock: Clock
) -> parity.Parity | None:
    """Probe once, under a pin. `live` tells the policy whose weights the engine holds. None where the config wants no
    probe; raises ParityError above its thresholds, TimeoutError when no version stood long enough to be compared."""
    rollout = config.rollout
    if rollout.parity_max_abs == 0:
        return None
    usual = parity.THRESHOLDS[config.model.dtype]
    own = rollout.parity_max_abs, rollout.parity_mean_share
    max_abs, mean_share = usual if own[0] is None or own[1] is None else (own[0], own[1])  # both or none
    prompts = await asyncio.to_thread(_prompts, config, chat, lanes.context_tokens)
    deadline = clock.monotonic() + config.weights.apply_timeout_s
    missing = ""
    while clock.monotonic() < deadline:
        try:
            async with lanes.pinned(rollout.heldout_hold_s) as view:
                policy = live()
                if not await asyncio.to_thread(Path(policy.folder).is_dir):
                    raise FileNotFoundError(f"{policy.folder} is not there")
                score = await asyncio.to_thread(
                    parity.transformers_score,
                    config.model.path,
                    weights=policy.folder,
                    revision=config.model.revision,
                    dtype=config.model.dtype,
                )
                found = await parity.probe(view, prompts, score, max_new_tokens=COMPLETION_TOKENS)
        except (FileNotFoundError, PinLost, DamagedWeights) as error:
            if isinstance(error, DamagedWeights) and str(error) != missing:  # another version comes
                log.warning("the parity probe can't use a version", why=str(error))
            missing = str(error)
            await asyncio.sleep(_AGAIN_S)
            continue
        found.check(max_abs=max_abs, mean_share=mean_share)
        log.info(
            "parity",
            version=policy.version,
            tokens=found.tokens,
            max_abs=found.max_abs,
            mean_abs=found.mean_abs,
            mean_share=round(found.mean_share, 6),
        )
        return found
    raise TimeoutError(
        f"the parity probe waited {config.weights.apply_timeout_s:g} s for a version's folder: {missing}; raise "
        f"weights.apply_timeout_s, or set rollout.parity_max_abs and parity_mean_share to 0"
    )


def _prompts(config: RunConfig, chat: Any, context_tokens: int) -> list[list[int]]:
    """First prompts of the shortest starter tasks, cut where the context is small."""
    from core.episodes import prompts
    from core.tasks.loading import load_tasks

    tasks = load_tasks([TaskSource(kind="starter").model_dump()], config.tasks.backend)
    style = config.episodes.prompt
    first = chat.for_style(style).first
    shortest = sorted(tasks, key=lambda task: (len(task.source), task.task_id))[:PROMPTS]
    room = max(1, context_tokens - COMPLETION_TOKENS)
    return [first(prompts.first_messages(task, style))[:room] for task in shortest]
