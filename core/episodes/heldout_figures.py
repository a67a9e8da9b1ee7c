"""A held-out evaluation as data: the same tasks, sampled the same way, before training and after.

`HeldOut.of(episodes, ...)` makes one, `core.record.heldout` keeps it. Figures are named as everywhere
(`core.episodes.metrics`); the kernels are in it, so that a report can show what the policy wrote before and after.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from core.episodes.episode import Episode, Turn
from core.episodes.metrics import batch_metrics, mean
from core.evaluation.verdict import Verdict


class HeldOutTurn(msgspec.Struct, frozen=True, kw_only=True):
    candidate: str | None = None
    verdict: Verdict | None = None
    score: float | None = None


class HeldOutEpisode(msgspec.Struct, frozen=True, kw_only=True):
    task_id: str
    level: int = 1
    index: int = 0
    end: str = ""
    turns: tuple[HeldOutTurn, ...] = ()
    completion_tokens: int = 0
    """Sampled, in all turns."""

    @property
    def best(self) -> HeldOutTurn | None:
        """The turn with the highest score; the earlier one on a tie."""
        scored = [turn for turn in self.turns if turn.score is not None]
        return max(scored, key=lambda turn: turn.score or 0.0, default=None)


class HeldOut(msgspec.Struct, frozen=True, kw_only=True):
    """One evaluation."""

    version: int
    """Policy version that was evaluated."""
    step: int
    tasks: int
    seed: int = 0
    figures: dict[str, float] = {}
    sources: dict[str, str] = {}
    """task_id -> the task's PyTorch source."""
    episodes: tuple[HeldOutEpisode, ...] = ()

    @classmethod
    def of(
        cls, episodes: Sequence[Episode], *, version: int, step: int, seed: int = 0, sources: Mapping[str, str]
    ) -> "HeldOut":
        """From the episodes that were played; their tokens are left out."""
        return cls(
            version=version,
            step=step,
            tasks=len({episode.task_id for episode in episodes}),
            seed=seed,
            figures=batch_metrics(episodes),
            sources=dict(sources),
            episodes=tuple(slim(episodes)),
        )


def slim(episodes: Iterable[Episode], *, candidates: bool = True) -> list[HeldOutEpisode]:
    """Without tokens; without `candidates` there are only figures."""
    return [
        HeldOutEpisode(
            task_id=episode.task_id,
            level=episode.level,
            index=episode.index,
            end=episode.end,
            completion_tokens=episode.completion_tokens,
            turns=tuple(
                HeldOutTurn(candidate=turn.candidate if candidates else None, verdict=turn.verdict, score=turn.score)
                for turn in episode.turns
            ),
        )
        for episode in episodes
    ]


def round_figures(episodes: Sequence[HeldOutEpisode], max_turns: int) -> dict[str, float]:
    """`batch_metrics` of what an evaluation beside training kept of its episodes, and how many were played and count.
    Times and staleness are not among them."""
    whole = [_tokenless(episode) for episode in episodes]
    found = batch_metrics(whole, max_turns=max_turns)
    scored = [kept for kept, episode in zip(episodes, whole, strict=True) if episode.trainable]
    if scored:
        found["tokens/completion_mean"] = mean([episode.completion_tokens for episode in scored])
    return found | {"episodes/played": float(len(episodes)), "episodes/scored": float(len(scored))}


def tracked(evaluated: Mapping[str, Any]) -> dict[str, float]:
    """The data of an `evaluated` fact as figures of the step that made its version: `heldout/reward/mean`, ..."""
    figures = {name: evaluated[name] for name in ("version", "oldest", "newest", "tasks", "missing")}
    return {f"heldout/{name}": float(value) for name, value in {**figures, **evaluated["figures"]}.items()}


def _tokenless(episode: HeldOutEpisode) -> Episode:
    return Episode(
        group_id="",
        index=episode.index,
        task_id=episode.task_id,
        level=episode.level,
        end=episode.end,
        turns=tuple(
            Turn(
                index=n, prompt_ids=b"", completion_ids=b"", logprobs=b"", versions=b"", candidate=turn.candidate,
                verdict=turn.verdict, score=turn.score,
            )
            for n, turn in enumerate(episode.turns)
        ),
    )  # fmt: skip
