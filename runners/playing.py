"""An engine and judges of this process's own, for commands that sample and judge without a bus.

async with at_hand(config) as playing:
    await playing.evaluate(tasks, samples_per_task=4)
    await playing.pool.judge(task, source, key)
"""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

    from configs.schema import RunConfig
    from core.episodes.episode import Episode
    from core.episodes.heldout_figures import HeldOut
    from core.evaluation.pool import JudgePool
    from core.evaluation.verdict import Verdict
    from core.generation.engine import Engine
    from core.tasks.task import Task


def check_cards(config: "RunConfig") -> None:
    """Raises UsageError where the config names cards that this process does not see."""
    from actors.cards import names_of
    from runners.usage import UsageError

    try:
        names_of(config.judge.cards_of("evaluator-0"), "judge.cards")
        names_of(config.rollout.cards_of("generator-0"), "rollout.cards")
    except ValueError as error:
        raise UsageError(str(error)) from None


def check_judge_here(config: "RunConfig") -> None:
    """Raises UsageError where the config judges on a GPU and there is none."""
    from runners.preflight import has_gpu
    from runners.usage import UsageError

    if config.judge.device_class != "cpu" and not has_gpu():
        raise UsageError(
            f"the config judges on judge.device_class = {config.judge.device_class!r}, but this machine has no GPU: "
            "call this where there is one, or give judge.device_class=cpu judge.speed=modelled to judge by the CPU tier"
        )


def pool_of(config: "RunConfig") -> "JudgePool":
    """The judges of a run's first evaluator, on its cards; not started."""
    from actors.cards import names_of
    from core.evaluation.pool import JudgePool
    from core.evaluation.settings import JudgeSettings

    known = JudgeSettings.__struct_fields__
    settings = JudgeSettings(**{name: value for name, value in config.judge.model_dump().items() if name in known})
    return JudgePool(settings, config.judge.workers, names_of(config.judge.cards_of("evaluator-0"), "judge.cards"))


def key_of(config: "RunConfig", task: "Task", candidate: str) -> str:
    """A candidate's key under the config's judge."""
    from core.identity import candidate_key

    return candidate_key(task.source, candidate, config.judge.identity(), config.judge.device_class)


@dataclass
class Playing:
    config: "RunConfig"
    engine: "Engine"
    pool: "JudgePool"
    _verdicts: "dict[str, asyncio.Task[Verdict]]" = field(default_factory=dict)

    async def judge(self, task: "Task", candidate: str) -> "Verdict":
        """Equal kernels share one verdict, as they do on the bus; a waiter that gives up leaves it to the others."""
        import asyncio

        from core.to_the_end import to_the_end

        key = key_of(self.config, task, candidate)
        if key not in self._verdicts:
            self._verdicts[key] = asyncio.create_task(self.pool.judge(task, candidate, key))
        return await to_the_end(self._verdicts[key])

    async def evaluate(
        self,
        tasks: "list[Task]",
        *,
        samples_per_task: int,
        seed: int = 0,
        step: int | None = None,
        ended: "Callable[[Episode], None]" = lambda _: None,
    ) -> "HeldOut":
        """As `core.episodes.heldout.evaluate`, by the config's rules, prompts and reward."""
        from core.episodes.chat import Chat
        from core.episodes.heldout import evaluate
        from core.episodes.play import PlaySettings
        from core.evaluation.reward import score
        from core.generation.load import load_tokenizer

        config = self.config
        return await evaluate(
            tasks,
            engine=self.engine,
            chat=Chat(
                load_tokenizer(config.model.path),
                thinking=config.episodes.thinking,
                plain=config.episodes.prompt == "kernelllm",
            ),
            judge=self.judge,
            score=lambda verdict: score(verdict, **config.reward.model_dump()),
            settings=PlaySettings.of(config.episodes, config.rollout),
            samples_per_task=samples_per_task,
            seed=seed,
            step=step,
            episodes_in_flight=config.rollout.batch_rows,
            ended=ended,
        )


@contextlib.asynccontextmanager
async def at_hand(
    config: "RunConfig", first: "Callable[[JudgePool], Awaitable[None]] | None" = None
) -> AsyncIterator[Playing]:
    """The policy in `config.model.path` and the judges, on the cards of a run's first generator and first evaluator;
    stopped at the end, whatever comes. `first` is done with the judges while the engine starts."""
    import asyncio

    from actors.cards import number_cards, take_cards
    from core.generation.load import load_engine

    pool = pool_of(config)
    take_cards(config.rollout.cards_of("generator-0"), "rollout.cards")  # the engine's; the judge has its own by now
    number_cards()
    engine: Any = load_engine(
        config.rollout.engine,
        config.model.path,
        dtype=config.model.dtype,
        context_tokens=config.model.context_tokens,
        batch_rows=config.rollout.batch_rows,
        threads=config.rollout.threads,
        vllm=config.rollout.vllm.model_dump(),
    )

    async def start_judges() -> None:
        await pool.start()
        if first is not None:
            await first(pool)

    try:
        await asyncio.gather(start_judges(), engine.start())
        yield Playing(config, engine, pool)
    finally:
        try:
            await engine.stop()
        finally:
            await pool.stop()
