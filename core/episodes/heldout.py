"""Held-out evaluation: every task played some times with one policy version, and the figures of it.

The same tasks, settings and seed give the same draws, so that two policies are compared on equal terms. Episodes are
those of training (same rules, same prompts); their tokens are dropped, their kernels and verdicts kept.
"""

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from core.clock import Clock
from core.episodes.chat import Chat
from core.episodes.episode import Episode
from core.episodes.heldout_figures import HeldOut
from core.episodes.metrics import batch_metrics
from core.episodes.play import Judge, PlaySettings, Score, play_group
from core.generation.engine import Engine
from core.identity import digest
from core.tasks.task import Task


async def evaluate(
    tasks: Sequence[Task],
    *,
    engine: Engine,
    chat: Chat,
    judge: Judge,
    score: Score,
    settings: PlaySettings,
    samples_per_task: int = 1,
    seed: int = 0,
    step: int | None = None,
    episodes_in_flight: int = 64,
    clock: Clock | None = None,
    ended: Callable[[Episode], None] = lambda episode: None,
) -> HeldOut:
    """Play `samples_per_task` episodes of each task. `step` is the optimizer step that the weights belong to; None
    takes the engine's version. No more than `episodes_in_flight` run at once (at least one group), so that waiting in
    line does not count against an episode's deadline. `ended` is called with each episode when it ends. Raises
    ValueError without tasks or samples."""
    if not tasks or samples_per_task < 1:
        raise ValueError(f"nothing to evaluate: {len(tasks)} tasks, {samples_per_task} samples of each")
    version = engine.version if step is None else step  # one update is one version
    room = asyncio.Semaphore(max(1, episodes_in_flight // samples_per_task))

    async def one(task: Task) -> list[Episode]:
        async with room:
            group = play_group(
                task,
                group_id=digest("held-out", task.task_id, str(seed)),
                indices=range(samples_per_task),
                engine=engine,
                chat=chat,
                judge=judge,
                score=score,
                settings=settings,
                seed=int(digest(str(seed), task.task_id, size=7), 16),
                clock=clock,
            )
            episodes = []
            async for episode in group:
                ended(episode)
                episodes.append(episode)
            return sorted(episodes, key=lambda episode: episode.index)

    async with asyncio.TaskGroup() as playing:
        groups = [playing.create_task(one(task)) for task in tasks]
    episodes = [episode for group in groups for episode in group.result()]
    made = HeldOut.of(
        episodes,
        version=version,
        step=version,
        seed=seed,
        sources={task.task_id: task.source for task in tasks},
    )
    return msgspec.structs.replace(made, figures=figures(episodes, settings.max_turns))


def figures(episodes: Sequence[Episode], max_turns: int) -> dict[str, float]:
    """`batch_metrics` of all episodes; of each level under `level_N/`, where there are several; and how many were
    played and how many of them count."""
    found = batch_metrics(episodes, max_turns=max_turns)
    found["episodes/played"] = float(len(episodes))
    found["episodes/scored"] = float(sum(episode.trainable for episode in episodes))
    levels = sorted({episode.level for episode in episodes})
    for level in levels if len(levels) > 1 else []:
        part = [episode for episode in episodes if episode.level == level]
        found |= {f"level_{level}/{name}": value for name, value in batch_metrics(part, max_turns=max_turns).items()}
        found[f"level_{level}/episodes/played"] = float(len(part))
    return found
