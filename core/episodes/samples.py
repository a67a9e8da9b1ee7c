"""Samples: what the learner trains on, made from episodes.

    credit `turn`        every scored turn is a sample of its own, with R_t = Σ_{i≥t} γ^(i-t) s_i   (Kevin-32B)
    credit `trajectory`  one sample per episode, with R = Σ_t γ^t s_t                               (TritonForge)

A turn's prompt mostly begins with the prompt and completion before it, id by id. Where it does not (a chat template
dropped the thinking, the history was compressed) a trajectory goes on in a new sample with the same return; nothing is
trained twice, since the mask is 1 only where a turn's own completion stands. Samples of single turns are not touched.

A turn without a score (infra, unsupported) is left out, and so is every turn of its episode before it under `turn`
credit, since their returns are not known: infra trouble is never a score of zero.
"""

import msgspec
import numpy as np

from core import columns
from core.episodes.episode import Episode, Turn


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One row of training data. All arrays are [tokens], prompt and completion(s) in one sequence."""

    group_id: str
    index: int
    """Of the episode in its group."""
    turn: int
    """Index of the (first) turn; samples are compared within (group, turn, role)."""
    role: str
    ids: np.ndarray
    """int32"""
    mask: np.ndarray
    """uint8, 1 on the tokens that the policy sampled"""
    logprobs: np.ndarray
    """float32, of the behaviour policy; 0 where mask is 0"""
    versions: np.ndarray
    """int32, policy version that sampled the token; -1 where mask is 0"""
    ret: float
    """The return that this sample is credited with."""
    truncated: bool = False
    """A completion in it was cut off at the token limit."""


def returns_to_go(scores: list[float | None], gamma: float) -> list[float | None]:
    """R_t = Σ_{i≥t} γ^(i-t) s_i for every turn; None from the first turn whose future holds an unknown score."""
    out: list[float | None] = [None] * len(scores)
    tail: float | None = 0.0
    for t in range(len(scores) - 1, -1, -1):
        score = scores[t]
        tail = None if score is None or tail is None else score + gamma * tail
        out[t] = tail
    return out


def discounted_sum(scores: list[float | None], gamma: float) -> float | None:
    """R = Σ_t γ^t s_t; None when a score is unknown."""
    known = [score for score in scores if score is not None]
    if len(known) != len(scores) or not scores:
        return None
    return sum(score * gamma**t for t, score in enumerate(known))


def samples_of(episode: Episode, *, credit: str, gamma: float) -> list[Sample]:
    """The samples of one episode; empty for a tombstone or when no return is known."""
    if not episode.trainable:
        return []
    scores = [turn.score for turn in episode.turns]
    if credit == "turn":
        rets = returns_to_go(scores, gamma)
        return [
            _sample(episode, [turn], [_turn_parts(turn)], ret)
            for turn, ret in zip(episode.turns, rets, strict=True)
            if ret is not None and turn.completion_ids
        ]
    if credit != "trajectory":
        raise ValueError(f"unknown credit {credit!r}; known: turn, trajectory")
    total = discounted_sum(scores, gamma)
    if total is None:
        return []
    return [
        _sample(episode, turns, parts, total)
        for turns, parts in _chains(episode.turns)
        if any(len(completion) for _, completion, _, _ in parts)
    ]


def _turn_parts(turn: Turn) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(prompt ids, completion ids, log-probs, versions) of one turn."""
    return (
        columns.unpack("ids", turn.prompt_ids),
        columns.unpack("ids", turn.completion_ids),
        columns.unpack("logprobs", turn.logprobs),
        columns.unpack("versions", turn.versions),
    )


def _chains(turns: tuple[Turn, ...]) -> list[tuple[list[Turn], list[tuple[np.ndarray, ...]]]]:
    """Turns joined as long as each prompt extends what came before, id by id; a break opens a new sample. Each part's
    prompt is what the turn added to the ids before it."""
    chains: list[tuple[list[Turn], list[tuple[np.ndarray, ...]]]] = []
    so_far = np.zeros(0, np.int32)
    for turn in turns:
        prompt, completion, logprobs, versions = _turn_parts(turn)
        joins = chains and len(prompt) >= len(so_far) and np.array_equal(prompt[: len(so_far)], so_far)
        if joins:
            chains[-1][0].append(turn)
            chains[-1][1].append((prompt[len(so_far) :], completion, logprobs, versions))
        else:
            chains.append(([turn], [(prompt, completion, logprobs, versions)]))
        so_far = np.concatenate([prompt, completion])
    return chains


def _sample(episode: Episode, turns: list[Turn], parts: list[tuple[np.ndarray, ...]], ret: float) -> Sample:
    ids, mask, logprobs, versions = [], [], [], []
    for prompt, completion, lps, vs in parts:
        ids += [prompt, completion]
        mask += [np.zeros(len(prompt), np.uint8), np.ones(len(completion), np.uint8)]
        logprobs += [np.zeros(len(prompt), np.float32), lps]
        versions += [np.full(len(prompt), -1, np.int32), vs]
    return Sample(
        group_id=episode.group_id,
        index=episode.index,
        turn=turns[0].index,
        role=episode.role,
        ids=np.concatenate(ids),
        mask=np.concatenate(mask),
        logprobs=np.concatenate(logprobs),
        versions=np.concatenate(versions),
        ret=float(ret),
        truncated=any(turn.finish == "length" for turn in turns),
    )
