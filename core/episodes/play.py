"""Playing: prompt → completion → candidate → verdict → score, turn by turn, until the rules end the episode.

    play_group ──▶ play × n, side by side
                     │  engine.generate      holds an engine slot
                     │  judge                holds none: the slot was given back with the completion
                     └▶ Episode              exactly one, tombstones included

Waiting is bounded twice: by `verdict_timeout_s` for one verdict and by `deadline_s` for the episode. What ends an
episode without training data is said in its tombstone; errors of the engine or the judge themselves are not caught,
since work that was not done is redelivered. Cancelling gives everything back.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import NamedTuple

import numpy as np

from core import columns
from core.clock import Clock, SystemClock
from core.episodes import extract, prompts, rules
from core.episodes.chat import Chat
from core.episodes.episode import Episode, Turn
from core.episodes.history import History
from core.episodes.settings import PlaySettings
from core.evaluation.verdict import Verdict
from core.generation.engine import Completion, Engine, Sampling
from core.identity import digest
from core.tasks.task import Task

Judge = Callable[[Task, str], Awaitable[Verdict]]
"""(task, candidate) -> the terminal verdict."""
Score = Callable[[Verdict], float | None]


class Opening(NamedTuple):
    """A task's first prompt, which all episodes of a group share."""

    messages: list[prompts.Message]
    ids: list[int]


async def opening(task: Task, chat: Chat, style: str) -> Opening:
    messages = prompts.first_messages(task, style)
    return Opening(messages, await asyncio.to_thread(chat.for_style(style).first, messages))


async def play(
    task: Task,
    *,
    group_id: str,
    index: int,
    engine: Engine,
    chat: Chat,
    judge: Judge,
    score: Score,
    settings: PlaySettings,
    seed: int,
    max_turns: int | None = None,
    clock: Clock | None = None,
    role: str = "generator",
    start: Opening | None = None,
) -> Episode:
    """One episode of `task`, ended. Equal arguments give equal draws: each turn's seed is made from `seed`, `index` and
    the turn. `max_turns` overrides the settings' (a curriculum's horizon)."""
    episode = _Play(task, group_id, index, engine, chat, judge, score, settings, seed, clock or SystemClock(), role)
    return await episode.run(start, max_turns or settings.max_turns)


async def play_group(
    task: Task,
    *,
    group_id: str,
    indices: Sequence[int],
    engine: Engine,
    chat: Chat,
    judge: Judge,
    score: Score,
    settings: PlaySettings,
    seed: int,
    max_turns: int | None = None,
    clock: Clock | None = None,
    role: str = "generator",
) -> AsyncIterator[Episode]:
    """Episodes `indices` of a group (after a redelivery: only the missing ones) side by side, each as it ends. An
    error in one ends the others; closing the iterator cancels what still runs."""
    start = await opening(task, chat, settings.prompt)
    tasks = [
        asyncio.create_task(
            play(
                task,
                group_id=group_id,
                index=index,
                engine=engine,
                chat=chat,
                judge=judge,
                score=score,
                settings=settings,
                seed=seed,
                max_turns=max_turns,
                clock=clock,
                role=role,
                start=start,
            )
        )
        for index in indices
    ]
    try:
        for ended in asyncio.as_completed(tasks):
            yield await ended
    finally:
        for playing in tasks:
            playing.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Tombstone(Exception):
    """Ends an episode without training data."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail


class _Play:
    """One episode on its way."""

    def __init__(
        self,
        task: Task,
        group_id: str,
        index: int,
        engine: Engine,
        chat: Chat,
        judge: Judge,
        score: Score,
        settings: PlaySettings,
        seed: int,
        clock: Clock,
        role: str,
    ) -> None:
        self.task, self.group_id, self.index = task, group_id, index
        self.engine, self.judge, self.score = engine, judge, score
        self.chat = chat.for_style(settings.prompt)
        self.settings, self.seed, self.clock, self.role = settings, seed, clock, role
        self.turns: list[Turn] = []
        self.generation_s = self.judging_s = 0.0
        self.waits_for = "its first prompt"

    async def run(self, start: Opening | None, max_turns: int) -> Episode:
        detail = ""
        try:
            async with asyncio.timeout(self.settings.deadline_s) as patience:
                end, detail = await self._turns(start, max_turns)
        except TimeoutError:
            if not patience.expired():
                raise
            end, detail = "deadline", f"not over after {self.settings.deadline_s:g} s: waited for {self.waits_for}"
        except _Tombstone as tombstone:
            end, detail = tombstone.reason, tombstone.detail
        return Episode(
            group_id=self.group_id,
            index=self.index,
            task_id=self.task.task_id,
            level=self.task.level,
            role=self.role,
            turns=tuple(self.turns),
            end=end,
            detail=detail,
            generation_s=self.generation_s,
            judging_s=self.judging_s,
        )

    async def _turns(self, start: Opening | None, max_turns: int) -> tuple[str, str]:
        """Play until an end of `core.episodes.episode.ENDS`; answers with it and a detail, or raises _Tombstone."""
        settings = self.settings
        start = start or await opening(self.task, self.chat, settings.prompt)
        budget = rules.most_prompt_tokens(
            context_tokens=self.engine.context_tokens, max_new_tokens=settings.max_new_tokens
        )
        if len(start.ids) > budget:
            raise _Tombstone("context_first", self._too_long(0, len(start.ids)))
        if settings.history == "compressed" and settings.history_tokens:
            budget = min(budget, settings.history_tokens)
        history = History(
            self.chat,
            start.messages,
            start.ids,
            mode=settings.history,
            style=settings.prompt,
            budget_tokens=budget,
        )
        while True:
            number, ids = len(self.turns), history.ids
            completion = await self._generate(ids, number)
            if not np.isfinite(completion.logprobs).all():
                version = int(completion.versions[-1])
                raise _Tombstone("engine", f"non-finite log-probs in turn {number}, sampled by version {version}")
            text = await asyncio.to_thread(self.chat.text, completion.ids)
            candidate = extract.candidate_of(text)
            verdict = extract.no_candidate(text, completion.finish)
            if candidate is not None:
                verdict = await self._judge(candidate, number)
            masked = verdict.kind in ("infra", "unsupported")
            points = None if masked else self.score(verdict)
            self.turns.append(self._turn(ids, completion, candidate, verdict, points))
            if points is None:
                if len(self.turns) == 1:
                    reason = verdict.kind if masked else "infra"
                    raise _Tombstone(reason, verdict.feedback or f"no score for a verdict of kind {verdict.kind}")
                return "max_turns", f"turn {number} has no score ({verdict.kind}): {verdict.feedback}".strip()
            end = rules.ending(
                [turn.score for turn in self.turns],
                max_turns=max_turns,
                success_score=settings.success_score,
                zero_turns=settings.zero_turns,
            )
            if end:
                return end, ""
            if not await asyncio.to_thread(history.add, completion.ids, text, verdict, points):
                return "context", f"{self._too_long(number + 1, len(history.ids))}, its budget {budget}"

    def _too_long(self, number: int, tokens: int) -> str:
        return f"the prompt of turn {number} has {tokens} tokens, the context {self.engine.context_tokens}"

    async def _generate(self, ids: list[int], number: int) -> Completion:
        settings = self.settings
        sampling = Sampling(
            max_new_tokens=settings.max_new_tokens,
            temperature=settings.temperature,
            top_p=settings.top_p,
            top_k=settings.top_k,
            stop_ids=self.chat.stop_ids,
            seed=int(digest(str(self.seed), str(self.index), str(number), size=7), 16),
        )
        self.waits_for = f"the completion of turn {number}"
        began = self.clock.monotonic()
        try:
            return await self.engine.generate(ids, sampling)
        finally:
            self.generation_s += self.clock.monotonic() - began

    async def _judge(self, candidate: str, number: int) -> Verdict:
        self.waits_for = f"the verdict of turn {number}"
        began = self.clock.monotonic()
        try:
            async with asyncio.timeout(self.settings.verdict_timeout_s) as patience:
                return await self.judge(self.task, candidate)
        except TimeoutError:
            if not patience.expired():
                raise
            raise _Tombstone(
                "deadline", f"no verdict for turn {number} after {self.settings.verdict_timeout_s:g} s"
            ) from None
        finally:
            self.judging_s += self.clock.monotonic() - began

    def _turn(
        self, ids: list[int], completion: Completion, candidate: str | None, verdict: Verdict, points: float | None
    ) -> Turn:
        return Turn(
            index=len(self.turns),
            role=self.role,
            prompt_ids=columns.pack("ids", ids),
            completion_ids=columns.pack("ids", completion.ids),
            logprobs=columns.pack("logprobs", completion.logprobs),
            versions=columns.pack("versions", completion.versions),
            finish=completion.finish,
            candidate=candidate,
            verdict=verdict,
            score=points,
        )
