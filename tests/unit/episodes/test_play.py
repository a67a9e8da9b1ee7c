import asyncio
import itertools

import msgspec
import numpy as np
import pytest

from core import columns
from core.clock import ManualClock
from core.episodes.chat import Chat
from core.episodes.episode import ENDS
from core.episodes.extract import candidate_of
from core.episodes.heldout import evaluate
from core.episodes.play import PlaySettings, play, play_group
from core.episodes.samples import samples_of
from core.evaluation.verdict import Verdict
from core.generation.transformers_engine import TransformersEngine
from core.tasks.task import Task
from tests.unit.episodes import policies

SOURCE = "class Model:\n    def forward(self, x):\n        return x\n"
TASK = Task(task_id="t/one", name="one", level=1, origin="t", source=SOURCE)
SETTINGS = PlaySettings(prompt="compact", max_new_tokens=8, max_turns=3)

FAST = Verdict(candidate_key="k", kind="pass", compiled=True, correct=True, speedup=2.0, speedup_low=2.0)
RIGHT = Verdict(candidate_key="k", kind="pass", compiled=True, correct=True, speedup=1.0, speedup_low=1.0)
WRONG = Verdict(candidate_key="k", kind="fail", stage="correctness", category="wrong_value", compiled=True)
BROKEN = Verdict(candidate_key="k", kind="fail", stage="load", category="import_error")
INFRA = Verdict(candidate_key="k", kind="infra", feedback="the sandbox did not start")
UNKNOWN = Verdict(candidate_key="k", kind="unsupported", feedback="bfloat16")


def score(verdict):
    if verdict.kind in ("infra", "unsupported"):
        return None
    return 0.3 + (verdict.speedup_low - 1) if verdict.correct else 0.1 * verdict.compiled


def says(*verdicts):
    """A judge that answers with these in turn, and writes down what it was asked."""
    answers, asked = itertools.chain(verdicts), []

    async def judge(task, candidate):
        asked.append(candidate)
        return next(answers)

    judge.asked = asked
    return judge


def with_engine(model, use, **options):
    """`use(play arguments)` beside a running engine."""

    async def run():
        engine = TransformersEngine(model, **options)
        await engine.start()
        try:
            return await use(
                {"group_id": "g", "engine": engine, "chat": Chat(policies.tokenizer()), "score": score, "seed": 1}
            )
        finally:
            await engine.stop()

    return asyncio.run(run())


def one(model, judge, settings=SETTINGS, **more):
    return with_engine(model, lambda args: play(TASK, index=0, judge=judge, settings=settings, **args, **more))


def test_a_good_first_turn_ends_the_episode():
    judge = says(FAST)
    episode = one(policies.coder(), judge)
    (turn,) = episode.turns
    assert (episode.end, episode.episode_id, episode.task_id, episode.level) == ("success", "g/0", "t/one", 1)
    assert turn.score == pytest.approx(1.3) and turn.verdict == FAST and judge.asked == [turn.candidate]
    chat = Chat(policies.tokenizer())
    assert columns.unpack("ids", turn.prompt_ids).tolist() == chat.first(
        [{"role": "user", "content": "def forward(self, x):\n    return x"}]
    )
    assert turn.candidate == candidate_of(chat.text(columns.unpack("ids", turn.completion_ids)))
    assert turn.finish in ("stop", "length") and episode.trainable


def test_later_turns_extend_the_ids_and_see_the_feedback():
    episode = one(policies.coder(), says(WRONG, RIGHT, WRONG))
    assert episode.end == "max_turns" and [turn.score for turn in episode.turns] == [0.1, 0.3, 0.1]
    tokenizer = policies.tokenizer()
    feedback = {1: "<|user|>\nfail wrong_value<|end|>", 2: "<|user|>\nslow 1.0x<|end|>"}
    for before, after in itertools.pairwise(episode.turns):
        old = [*columns.unpack("ids", before.prompt_ids), *columns.unpack("ids", before.completion_ids)]
        new = columns.unpack("ids", after.prompt_ids).tolist()
        assert new[: len(old)] == old
        added = new[len(old) :]
        if before.finish == "length":
            assert added.pop(0) == tokenizer.eos_token_id
        assert added == tokenizer(f"\n{feedback[after.index]}\n<|assistant|>\n", add_special_tokens=False)["input_ids"]
    assert len(samples_of(episode, credit="turn", gamma=0.4)) == 3
    assert len(samples_of(episode, credit="trajectory", gamma=0.4)) == 1


def test_zero_scored_turns_end_it():
    assert one(policies.coder(), says(BROKEN, BROKEN)).end == "gave_up"


def test_the_horizon_can_be_shorter_than_the_settings():
    episode = one(policies.coder(), says(WRONG), max_turns=1)
    assert episode.end == "max_turns" and len(episode.turns) == 1


def test_an_answer_without_code_is_a_failure_that_no_judge_sees():
    judge = says()
    episode = one(policies.talker(), judge)
    assert episode.end == "gave_up" and judge.asked == []
    for turn in episode.turns:
        assert turn.candidate is None and turn.score == 0.0
        assert (turn.verdict.kind, turn.verdict.stage, turn.verdict.category) == ("fail", "extract", "no_code")


@pytest.mark.parametrize("verdict", [INFRA, UNKNOWN])
def test_no_score_at_all_is_a_tombstone(verdict):
    episode = one(policies.coder(), says(verdict))
    assert (episode.end, episode.detail, episode.trainable) == (verdict.kind, verdict.feedback, False)
    assert [turn.score for turn in episode.turns] == [None]


@pytest.mark.parametrize("verdict", [INFRA, UNKNOWN])
def test_no_score_later_ends_the_episode_with_the_earlier_turns(verdict):
    episode = one(policies.coder(), says(WRONG, verdict))
    assert episode.end in ENDS and verdict.kind in episode.detail
    assert [turn.score for turn in episode.turns] == [0.1, None]


async def never(task, candidate):
    await asyncio.Event().wait()


def test_a_verdict_that_does_not_come_is_a_tombstone():
    settings = PlaySettings(prompt="compact", max_new_tokens=8, verdict_timeout_s=0.01)
    episode = one(policies.coder(), never, settings)
    assert episode.end == "deadline" and episode.detail == "no verdict for turn 0 after 0.01 s"


def test_the_episodes_deadline_says_what_it_waited_for():
    settings = PlaySettings(prompt="compact", max_new_tokens=8, deadline_s=0.5)
    episode = one(policies.coder(), never, settings)
    assert episode.end == "deadline" and episode.detail.startswith("not over after 0.5 s: waited for the ")


def test_a_judges_own_timeout_is_not_taken_for_the_deadline():
    async def judge(task, candidate):
        raise TimeoutError("of its own")

    with pytest.raises(TimeoutError, match="of its own"):
        one(policies.coder(), judge)


def test_a_task_that_does_not_fit_is_a_tombstone():
    episode = one(policies.coder(context_tokens=8), says())
    assert episode.end == "context_first" and not episode.turns and "the context 8" in episode.detail


def test_a_dialogue_that_does_not_fit_ends():
    episode = one(
        policies.coder(context_tokens=24),
        says(WRONG, WRONG, WRONG),
        PlaySettings(prompt="compact", max_new_tokens=8, max_turns=9),
    )
    assert episode.end == "context" and "has" in episode.detail and episode.trainable


LONG = PlaySettings(prompt="compact", max_new_tokens=8, max_turns=6, zero_turns=0)


def _prompts(episode):
    return [columns.unpack("ids", turn.prompt_ids).tolist() for turn in episode.turns]


def _joins(episode):
    """For each later turn: whether its prompt begins with the prompt and completion before."""
    found = []
    for before, after in itertools.pairwise(episode.turns):
        old = [*columns.unpack("ids", before.prompt_ids), *columns.unpack("ids", before.completion_ids)]
        found.append(columns.unpack("ids", after.prompt_ids).tolist()[: len(old)] == old)
    return found


@pytest.mark.parametrize("credit", ["turn", "trajectory"])
def test_a_compressed_history_goes_on_where_a_whole_one_ends(credit):
    verdicts = [WRONG, RIGHT, WRONG, WRONG, WRONG, WRONG]
    whole = one(policies.coder(), says(*verdicts), LONG)
    assert whole.end == "max_turns" and _joins(whole) == [True] * 5
    budget = max(map(len, _prompts(whole))) - 1
    short = msgspec.structs.replace(LONG, history="compressed", history_tokens=budget)
    episode = one(policies.coder(), says(*verdicts), short)
    assert episode.end == "max_turns" and len(episode.turns) == 6
    assert all(len(ids) <= budget for ids in _prompts(episode)) and not all(_joins(episode))
    samples = samples_of(episode, credit=credit, gamma=0.4)
    assert len(samples) == (6 if credit == "turn" else 1 + _joins(episode).count(False))
    trained = np.concatenate([sample.ids[sample.mask == 1] for sample in samples])
    assert trained.tobytes() == b"".join(turn.completion_ids for turn in episode.turns)
    # Up to the first break both are the same, draw by draw.
    first = _joins(episode).index(False)
    assert _prompts(episode)[: first + 1] == _prompts(whole)[: first + 1]


def test_a_whole_history_does_not_ask_the_budget_of_a_compressed_one():
    settings = msgspec.structs.replace(LONG, history="whole", history_tokens=1)
    assert len(one(policies.coder(), says(*[WRONG] * 6), settings).turns) == 6


def test_a_history_that_can_not_be_compressed_enough_ends_the_episode():
    settings = msgspec.structs.replace(LONG, history="compressed", history_tokens=10)
    episode = one(policies.coder(), says(*[WRONG] * 6), settings)
    assert episode.end == "context" and len(episode.turns) == 1 and episode.trainable
    assert episode.detail.endswith("the context 256, its budget 10") and "turn 1 has" in episode.detail


def test_without_a_budget_of_its_own_a_compressed_history_takes_what_the_context_leaves():
    verdicts = [WRONG] * 20
    settings = msgspec.structs.replace(LONG, max_turns=20, history="compressed")
    whole = one(policies.coder(context_tokens=80), says(*verdicts), msgspec.structs.replace(settings, history="whole"))
    episode = one(policies.coder(context_tokens=80), says(*verdicts), settings)
    assert whole.end == "context" and len(episode.turns) > len(whole.turns)
    assert all(len(ids) <= 80 - 8 // 4 for ids in _prompts(episode))


def test_a_plain_prompt_style_goes_through_no_template():
    episode = one(
        policies.coder(context_tokens=2048), says(WRONG, FAST), PlaySettings(prompt="kernelllm", max_new_tokens=8)
    )
    tokenizer = policies.tokenizer()
    first, second = _prompts(episode)
    assert tokenizer.convert_tokens_to_ids("<|user|>") not in [*first, *second]
    assert _joins(episode) == [True] and second.count(tokenizer.eos_token_id) == 1


def test_times_are_of_the_clock_that_was_given():
    clock = ManualClock()
    inner = says(WRONG, WRONG, FAST)

    async def judge(task, candidate):
        clock.advance(5)
        return await inner(task, candidate)

    episode = one(policies.coder(), judge, clock=clock)
    assert (episode.generation_s, episode.judging_s) == (0.0, 15.0)


def test_no_engine_slot_is_held_while_a_verdict_is_awaited():
    async def use(args):
        everybody = asyncio.Barrier(4)

        async def judge(task, candidate):
            await everybody.wait()
            return FAST

        group = play_group(TASK, indices=range(4), judge=judge, settings=SETTINGS, **args)
        return [episode async for episode in group]

    episodes = with_engine(policies.coder(), use, batch_rows=1)
    assert sorted(episode.index for episode in episodes) == [0, 1, 2, 3]
    assert {episode.end for episode in episodes} == {"success"}


def test_a_group_plays_the_missing_episodes_and_yields_each_as_it_ends():
    async def use(args):
        last = asyncio.Event()
        first_seen: list[str] = []

        async def judge(task, candidate):
            if not first_seen:
                first_seen.append(candidate)
                await last.wait()
            return FAST

        order = []
        async for episode in play_group(TASK, indices=[1, 4, 6], judge=judge, settings=SETTINGS, **args):
            order.append(episode)
            if len(order) == 2:
                last.set()
        return first_seen[0], order

    held, order = with_engine(policies.coder(), use)
    assert sorted(episode.index for episode in order) == [1, 4, 6]
    assert order[-1].turns[0].candidate == held


def test_equal_seeds_play_equal_episodes_alone_and_in_a_group():
    async def always(task, candidate):
        return WRONG

    async def use(args):
        group = [e async for e in play_group(TASK, indices=range(3), judge=always, settings=SETTINGS, **args)]
        alone = [await play(TASK, index=i, judge=always, settings=SETTINGS, **args) for i in range(3)]
        other = await play(TASK, index=0, judge=always, settings=SETTINGS, **{**args, "seed": 2})
        return sorted(group, key=lambda e: e.index), alone, other

    group, alone, other = with_engine(policies.coder(), use)

    def ids(episode):
        return [turn.completion_ids for turn in episode.turns]

    assert list(map(ids, group)) == list(map(ids, alone))
    assert len({*map(str, map(ids, alone)), str(ids(other))}) == 4


def test_an_error_in_one_episode_ends_the_group_and_frees_the_engine():
    async def use(args):
        calls = itertools.count()

        async def judge(task, candidate):
            if next(calls) == 1:
                raise RuntimeError("the bus is gone")
            await asyncio.Event().wait()

        with pytest.raises(RuntimeError, match="the bus is gone"):
            async for _ in play_group(TASK, indices=range(4), judge=judge, settings=SETTINGS, **args):
                pass
        everything = play_group(TASK, indices=range(4), judge=says(*[FAST] * 4), settings=SETTINGS, **args)
        return [episode.end async for episode in everything]

    assert with_engine(policies.coder(), use, batch_rows=1) == ["success"] * 4


def test_log_probs_that_are_not_finite_never_become_training_data():
    model = policies.coder()
    model.lm_head.weight.data.fill_(float("nan"))
    episode = one(model, says())
    assert episode.end == "engine" and "non-finite" in episode.detail and not episode.turns


def test_play_settings_mirror_the_config():
    from configs.schema import Episodes, Rollout

    made = PlaySettings.of(Episodes(max_turns=5, prompt="compact"), Rollout(max_new_tokens=7, verdict_timeout_s=3))
    assert (made.max_turns, made.prompt, made.max_new_tokens, made.verdict_timeout_s) == (5, "compact", 7, 3.0)
    names = set(Episodes.model_fields) | set(Rollout.model_fields)
    assert set(PlaySettings.__struct_fields__) <= names
    assert PlaySettings.of(Episodes(), Rollout()) == PlaySettings()


def test_held_out_figures_are_of_all_tasks_and_of_each_level():
    tasks = [Task(task_id=f"t/{i}", name=str(i), level=1 + i % 2, origin="t", source=SOURCE) for i in range(4)]
    seen: dict[str, int] = {}

    async def judge(task, candidate):
        seen[task.task_id] = seen.get(task.task_id, 0) + 1
        if task.level == 1:
            return FAST
        return WRONG if seen[task.task_id] == 1 else (FAST if task.task_id == "t/1" else BROKEN)

    async def use(args):
        shared = {name: args[name] for name in ("engine", "chat", "score")}
        return await evaluate(tasks, judge=judge, settings=SETTINGS, seed=3, **shared)

    made = with_engine(policies.coder(), use)
    figures = made.figures
    assert (figures["correct/by_turn_1"], figures["correct/by_turn_2"], figures["correct/any"]) == (0.5, 0.75, 0.75)
    assert (figures["level_1/correct/by_turn_1"], figures["level_2/correct/by_turn_1"]) == (1.0, 0.0)
    assert figures["repair/turn_2"] == 0.5 and figures["speedup/geomean"] == pytest.approx(2.0)
    assert figures["reward/mean"] == pytest.approx((1.3 * 3 + 0.1) / 4)
    assert (figures["episodes/played"], figures["episodes/scored"]) == (4, 4)
    assert [episode.task_id for episode in made.episodes] == [task.task_id for task in tasks]
    assert made.tasks == 4 and made.version == 0 and made.sources["t/0"] == SOURCE
    assert np.isfinite(list(figures.values())).all()


def test_nothing_to_evaluate_is_refused():
    async def use(args):
        shared = {name: args[name] for name in ("engine", "chat", "score")}
        with pytest.raises(ValueError, match="0 tasks, 1 samples"):
            await evaluate([], judge=never, settings=SETTINGS, **shared)

    with_engine(policies.coder(), use)
