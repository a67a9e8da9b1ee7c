"""The budget is exact: over random dialogues no prompt is above it, and no line is left out that had room."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core import columns
from core.episodes.chat import Chat
from core.episodes.episode import Episode, Turn
from core.episodes.history import History
from core.episodes.prompts import feedback_message, summary, summary_line
from core.episodes.samples import samples_of
from core.evaluation.verdict import Verdict
from tests.unit.episodes.families import family

CHATS = {
    "llama3.1": Chat(family("llama3.1")),
    "strict": Chat(family("strict")),
    "qwen3": Chat(family("qwen3")),
    "thinking": Chat(family("qwen3"), thinking=True),
    "merging": Chat(family("qwen2.5", merging=True)),
    "plain": Chat(family("llama3.1")).for_style("kernelllm"),
}
TASK = [{"role": "user", "content": "def forward(self, x):\n    return x"}]
WRONG = Verdict(candidate_key="k", kind="fail", stage="correctness", category="wrong_value", compiled=True)
SLOW = Verdict(candidate_key="k", kind="pass", compiled=True, correct=True, speedup=1.25, speedup_low=1.2)
NOTHING = Verdict(candidate_key="", kind="fail", stage="extract", category="no_code")


def _history(chat, budget, mode="compressed", style="compact"):
    return History(chat, TASK, chat.first(TASK), mode=mode, style=style, budget_tokens=budget)


def _answer(number, words=1):
    return f"```python\nclass ModelNew:\n    number{number} = {'x ' * words}1\n```"


def _play(history, chat, turns):
    """(prompt ids, completion ids, joined) of every turn, as a rollout gives them, until one does not fit."""
    played = []
    for number, (verdict, score, words) in enumerate(turns):
        completion = chat.answer_ids(_answer(number, words))
        played.append((list(history.ids), completion, history.joined))
        if not history.add(completion, _answer(number, words), verdict, score):
            break
    return played


TURNS = [(WRONG, 0.1, 3), (SLOW, 0.5, 2), (NOTHING, 0.0, 1), (WRONG, 0.1, 2), (WRONG, 0.1, 4), (SLOW, 0.4, 2)]


def _text(history, chat):
    return chat.spell(history.ids)


@pytest.mark.parametrize("name", CHATS)
def test_a_compressed_prompt_holds_the_best_and_the_last_attempt_and_a_line_of_the_others(name):
    chat = CHATS[name]
    whole = _history(chat, 10**6)
    _play(whole, chat, TURNS)
    history = _history(chat, len(whole.ids) - 1)
    _play(history, chat, TURNS)
    lines = ["1 wrong_value 0.10", "3 no_code 0.00", "4 wrong_value 0.10", "5 wrong_value 0.10"]
    messages = [
        {"role": "user", "content": TASK[0]["content"] + "\n\n" + "\n".join(lines)},
        {"role": "assistant", "content": _answer(1, 2)},
        {"role": "user", "content": "slow 1.2x"},
        {"role": "assistant", "content": _answer(5, 2)},
        {"role": "user", "content": "slow 1.2x"},
    ]
    assert history.ids == chat.first(messages) and not history.joined and len(history.ids) < len(whole.ids)


def test_lines_are_left_out_from_the_oldest_and_none_that_has_room():
    chat = CHATS["strict"]
    whole = _history(chat, 10**6)
    _play(whole, chat, TURNS)
    lengths = {}
    for budget in range(len(whole.ids), 0, -1):
        history = _history(chat, budget)
        history._attempts, history._messages = list(whole._attempts), list(whole._messages)
        history.ids = list(whole.ids)
        if len(history.ids) > budget:
            history._compress()
        if len(history.ids) > budget:
            break
        shown = [n for n in (1, 3, 4, 5) if f"\n{n} " in _text(history, chat)]
        lengths.setdefault(tuple(shown), set()).add(len(history.ids))
    # First the whole dialogue, which has no lines; at last the bare prompt.
    assert list(lengths) == [(), (1, 3, 4, 5), (3, 4, 5), (4, 5), (5,)] and len(lengths[()]) == 2
    assert all(len(found) == 1 for shown, found in lengths.items() if shown)


SCORED = st.sampled_from([(WRONG, 0.1), (SLOW, 0.5), (SLOW, 0.7), (NOTHING, 0.0)])
DIALOGUES = st.lists(st.tuples(SCORED, st.integers(1, 60)), min_size=1, max_size=9)


@given(st.sampled_from(sorted(CHATS)), DIALOGUES, st.integers(20, 900), st.sampled_from(["compact", "kernelbench"]))
@settings(max_examples=150, deadline=None)
def test_no_prompt_is_above_the_budget_and_none_is_shorter_than_it_must(name, dialogue, budget, style):
    chat = CHATS[name]
    history = _history(chat, budget, style=style)
    whole = _history(chat, budget, mode="whole", style=style)
    made, fits = [], True
    for number, ((verdict, score), words) in enumerate(dialogue):
        answer, before = _answer(number, words), list(history.ids)
        completion = chat.answer_ids(answer)
        made.append((number, verdict, score, answer))
        extended = chat.extend(before, completion, history._messages, feedback_message(verdict, score, style, number))
        whole_fits = whole.add(completion, answer, verdict, score)
        fits = history.add(completion, answer, verdict, score)
        assert fits == (len(history.ids) <= budget)
        assert fits or not whole_fits
        if len(extended.ids) <= budget:  # nothing is compressed that fits, and the prefix stays where it can
            assert history.ids == extended.ids and history.joined == extended.joined
        else:
            bare, with_lines = _expected(chat, made, style, budget)
            if len(bare) <= budget:
                assert history.ids == with_lines and not history.joined
            else:
                assert not fits
        if not fits:
            break


def _expected(chat, made, style, budget):
    """(the prompt without lines, the one with as many of the newest lines as fit), by trying all."""
    best = max(made, key=lambda turn: (turn[2], turn[0]))
    kept = [best] if best is made[-1] else [best, made[-1]]
    lines = [summary_line(v, s, style, n) for n, v, s, _ in made if all(n != turn[0] for turn in kept)]
    found = []
    for count in range(len(lines) + 1):
        task = dict(TASK[0])
        if count:
            task["content"] += "\n\n" + summary(lines[len(lines) - count :], style)
        messages = [task]
        for number, verdict, score, answer in kept:
            messages.append({"role": "assistant", "content": answer})
            messages.append({"role": "user", "content": feedback_message(verdict, score, style, number)})
        found.append(chat.first(messages))
    return found[0], [found[0], *(ids for ids in found if len(ids) <= budget)][-1]


@pytest.mark.parametrize("name", CHATS)
def test_a_budget_of_exactly_the_prompt_is_enough_and_one_token_less_is_not(name):
    chat = CHATS[name]
    turns = TURNS[:2]
    probe = _history(chat, 10**6)
    _play(probe, chat, turns[:1])
    need = len(probe.ids)
    completion = chat.answer_ids(_answer(0, 3))
    assert _history(chat, need).add(completion, _answer(0, 3), *turns[0][:2])
    short = _history(chat, need - 1)
    assert not short.add(completion, _answer(0, 3), *turns[0][:2])
    assert len(short.ids) == need


def test_after_compressing_the_dialogue_goes_on_from_the_compressed_prompt():
    chat = CHATS["llama3.1"]
    probe = _history(chat, 10**6)
    _play(probe, chat, TURNS[:4])
    history = _history(chat, len(probe.ids) - 1)
    played = _play(history, chat, TURNS)
    joined = [joined for _, _, joined in played]
    assert joined[:4] == [True] * 4 and not joined[4] and len(joined) == 6
    assert joined[5] == (played[5][0][: len(played[4][0]) + len(played[4][1])] == [*played[4][0], *played[4][1]])


@pytest.mark.parametrize("name", CHATS)
@pytest.mark.parametrize("credit", ["turn", "trajectory"])
def test_samples_break_where_the_prompt_does_and_every_completion_is_trained_once(name, credit):
    chat = CHATS[name]
    probe = _history(chat, 10**6)
    _play(probe, chat, TURNS[:4])
    played = _play(_history(chat, len(probe.ids) - 1), chat, TURNS)
    assert len(played) == len(TURNS) and not all(joined for _, _, joined in played)
    turns = tuple(
        Turn(
            index=i,
            prompt_ids=columns.pack("ids", prompt),
            completion_ids=columns.pack("ids", completion),
            logprobs=columns.pack("logprobs", [-1.0 - i] * len(completion)),
            versions=columns.pack("versions", [i] * len(completion)),
            score=TURNS[i][1],
        )
        for i, (prompt, completion, _) in enumerate(played)
    )
    made = samples_of(Episode(group_id="g", index=0, task_id="t", turns=turns), credit=credit, gamma=0.4)
    breaks = [i for i, (_, _, joined) in enumerate(played) if i == 0 or not joined]
    assert [sample.turn for sample in made] == (breaks if credit == "trajectory" else list(range(len(turns))))
    trained = np.concatenate([sample.ids[sample.mask == 1] for sample in made]).tolist()
    assert trained == [i for _, completion, _ in played for i in completion]
    for sample in made:
        assert (sample.versions[sample.mask == 0] == -1).all() and (sample.logprobs[sample.mask == 0] == 0).all()
        assert (sample.logprobs[sample.mask == 1] == -1.0 - sample.versions[sample.mask == 1]).all()
        begin = int(np.flatnonzero(sample.mask)[0])
        assert sample.ids[:begin].tolist() == played[sample.turn][0]
    assert len({sample.ret for sample in made}) == (1 if credit == "trajectory" else len(made))


def test_an_unknown_mode_is_refused():
    with pytest.raises(ValueError, match="unknown history 'short'; known: whole, compressed"):
        _history(CHATS["strict"], 9, mode="short")
