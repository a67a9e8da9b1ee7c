"""When an episode ends: pure functions of the scores so far.

success    a turn scored at least `success_score`
gave_up    the last `zero_turns` turns scored nothing
max_turns  the turns are used up
context    the next prompt leaves no room for an answer
"""

from collections.abc import Sequence


def ending(scores: Sequence[float | None], *, max_turns: int, success_score: float, zero_turns: int) -> str | None:
    """Why the episode is over after these turns, or None to go on. `zero_turns` 0 turns giving up off; rewards that go
    below zero count as zero. Turns without a score are neither success nor failure."""
    if not scores:
        return None
    last = scores[-1]
    if last is not None and last >= success_score:
        return "success"
    tail = scores[-zero_turns:] if zero_turns else []
    if tail and len(tail) == zero_turns and all(score is not None and score <= 0 for score in tail):
        return "gave_up"
    return "max_turns" if len(scores) >= max_turns else None


def most_prompt_tokens(*, context_tokens: int, max_new_tokens: int) -> int:
    """Most tokens of a prompt that leaves the answer at least a quarter of what it may use: less is cut off before
    there is a kernel, and would only teach the policy that this task is hopeless."""
    return context_tokens - max(1, max_new_tokens // 4)


def fits(prompt_tokens: int, *, context_tokens: int, max_new_tokens: int) -> bool:
    """True when the context has room for the prompt and an answer."""
    return prompt_tokens <= most_prompt_tokens(context_tokens=context_tokens, max_new_tokens=max_new_tokens)
