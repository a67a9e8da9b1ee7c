"""The engine protocol: ids in; ids, log-probs and versions out.

An engine keeps many requests running at once (continuous batching). Weights may change between two of its steps;
requests that are running survive, and every token says which version sampled it. Implementations:
`transformers_engine` (CPU, tests) and `vllm_engine`.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec
import numpy as np


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How to sample: logits are divided by the temperature, cut to the `top_k` largest, then to the smallest set that
    holds `top_p` of what is left. With temperature 1, top_p 1 and top_k 0 the log-probs are those of the raw policy."""

    max_new_tokens: int
    temperature: float = 1.0
    """0 means greedy; log-probs are then those of the unscaled, uncut distribution."""
    top_p: float = 1.0
    top_k: int = 0
    """0: all. Tokens that are as probable as the k-th stay too."""
    stop_ids: tuple[int, ...] = ()
    """Sampling any of these ends the completion; the stop token is part of it."""
    seed: int | None = None
    """Makes this request's draws repeatable, whatever runs beside it."""


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """What was sampled. All three arrays are [completion tokens]."""

    ids: np.ndarray
    """int32"""
    logprobs: np.ndarray
    """float32, natural log, of the distribution sampled from"""
    versions: np.ndarray
    """int32, policy version that sampled the token"""
    finish: str
    """`stop` or `length`"""


class PromptTooLong(ValueError):
    """The prompt leaves no room for a completion in the model's context."""


def room_for_answer(prompt_ids: Sequence[int], context_tokens: int, vocabulary: int) -> int:
    """How many tokens may follow the prompt, at least 1. Raises PromptTooLong, and ValueError for a prompt that is
    empty or has ids that the model has no embedding for: one of those would end the engine, and everybody's requests.
    """
    room = context_tokens - len(prompt_ids)
    if room < 1:
        raise PromptTooLong(
            f"the prompt has {len(prompt_ids)} tokens, the context {context_tokens}: no room for an answer"
        )
    if not len(prompt_ids):
        raise ValueError("the prompt is empty")
    if min(prompt_ids) < 0 or max(prompt_ids) >= vocabulary:
        stranger = next(i for i in prompt_ids if not 0 <= i < vocabulary)
        raise ValueError(
            f"the prompt has the id {stranger}, the model knows ids below {vocabulary}: another model's tokenizer"
        )
    return room


class Engine(Protocol):
    """One loaded policy that answers many requests at once."""

    @property
    def version(self) -> int:
        """Policy version of the weights in use."""
        ...

    @property
    def context_tokens(self) -> int:
        """Longest prompt + completion, in tokens."""
        ...

    async def start(self) -> None: ...

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
        """Sample one completion. Raises PromptTooLong; cancelling the call gives its slot back at once."""
        ...

    async def load_weights(self, source: str, version: int, fingerprint: str = "") -> str:
        """Swap in the weights of `source` (`core.weights.incoming`) between two steps; running requests go on. Answers
        with the fingerprint of the weights as loaded (`core.weights.fingerprint`). Where `fingerprint` is given and is
        another one, nothing is sampled by them: the engine ends, requests with EngineStopped, this call with
        WrongWeights."""
        ...

    async def stop(self) -> None: ...

    def gauges(self) -> dict[str, float]:
        """Named readings: `running`, `waiting`, `tokens_total`, `busy_s`, `paused_s`."""
        ...
