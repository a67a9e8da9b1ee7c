"""An episode: one attempt of the policy at a task, turn by turn.

    Episode(group_id="9f..", index=3, task_id="starter/l1_relu", turns=(Turn(index=0, ...), Turn(index=1, ...)),
            end="success")

A turn is prompt ids -> completion ids -> candidate -> verdict -> score. The ids are what the engine was given and what
it sampled; nothing here was ever tokenized again from text. An episode without training data is a tombstone: its `end`
is one of `TOMBSTONES` and says why.
"""

import msgspec

from core import columns
from core.evaluation.verdict import Verdict

ENDS = ("success", "gave_up", "max_turns", "context")
"""How an episode ends that can be trained on: score reached, too many zero-scored turns in a row, turns used up, the
next prompt does not fit."""
TOMBSTONES = (
    "infra", "unsupported", "deadline", "poison", "engine", "cancelled", "context_first", "undecodable",
    "oversize",
)  # fmt: skip
"""Why an episode carries nothing to train on. `undecodable`: its message stands in the log, but can't be read;
`oversize`: it was too large to be handed over at all."""


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One exchange. Columns are raw bytes (`core.columns`); the last four are [completion tokens] long."""

    index: int
    role: str = "generator"
    prompt_ids: bytes
    completion_ids: bytes
    logprobs: bytes
    versions: bytes
    finish: str = "stop"
    """`stop` (the model ended the turn) or `length` (cut off)."""
    candidate: str | None = None
    """The kernel source found in the completion, if any."""
    verdict: Verdict | None = None
    score: float | None = None
    """The turn's reward s_t; None where the verdict can't be scored (infra, unsupported)."""

    def __post_init__(self) -> None:
        for field, column, data in (
            ("prompt_ids", "ids", self.prompt_ids),
            ("completion_ids", "ids", self.completion_ids),
            ("logprobs", "logprobs", self.logprobs),
            ("versions", "versions", self.versions),
        ):
            if len(data) % columns.item_bytes(column):  # else whoever unpacks it raises, far from here
                raise ValueError(
                    f"turn {self.index}: {field} holds {len(data)} bytes, wanted a multiple of "
                    f"{columns.item_bytes(column)}: the message was cut, or packed by other means than core.columns"
                )
        tokens = columns.length("ids", self.completion_ids)
        for name, data in (("logprobs", self.logprobs), ("versions", self.versions)):
            if columns.length(name, data) != tokens:
                raise ValueError(
                    f"turn {self.index}: {tokens} completion tokens but {columns.length(name, data)} {name}"
                )


class Episode(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt, ended. `episode_id` is group_id/index."""

    group_id: str
    index: int
    task_id: str
    level: int = 1
    role: str = "generator"
    turns: tuple[Turn, ...] = ()
    end: str = "max_turns"
    """One of ENDS, or one of TOMBSTONES."""
    detail: str = ""
    """For a tombstone: what happened, in a line."""
    generation_s: float = 0.0
    judging_s: float = 0.0

    @property
    def episode_id(self) -> str:
        return f"{self.group_id}/{self.index}"

    @property
    def trainable(self) -> bool:
        """True when at least one turn has a score; tombstones are not."""
        return self.end in ENDS and any(turn.score is not None for turn in self.turns)

    @property
    def oldest_version(self) -> int | None:
        """Smallest policy version among the sampled tokens, or None when there are none."""
        lows = [int(columns.unpack("versions", turn.versions).min()) for turn in self.turns if turn.versions]
        return min(lows) if lows else None

    @property
    def newest_version(self) -> int | None:
        highs = [int(columns.unpack("versions", turn.versions).max()) for turn in self.turns if turn.versions]
        return max(highs) if highs else None

    @property
    def completion_tokens(self) -> int:
        return sum(columns.length("ids", turn.completion_ids) for turn in self.turns)

    @property
    def best_score(self) -> float:
        return max((turn.score for turn in self.turns if turn.score is not None), default=0.0)


def tombstone(group_id: str, index: int, task_id: str, reason: str, detail: str = "", **fields: object) -> Episode:
    """An episode that ended without training data."""
    if reason not in TOMBSTONES:
        raise ValueError(f"unknown tombstone reason {reason!r}; known: {', '.join(TOMBSTONES)}")
    return Episode(group_id=group_id, index=index, task_id=task_id, end=reason, detail=detail, **fields)  # type: ignore[arg-type]
