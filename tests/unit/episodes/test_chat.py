import pytest

from core.episodes.chat import Chat

KEEPING = ("demo", "chatml", "llama3")
TASK = [{"role": "user", "content": "def forward(self, x):\n    return torch.relu(x)"}]
ANSWER = "```python\nclass ModelNew:\n    pass\n```"


def _template(tokenizer, messages, answer_next=True):
    text = tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=answer_next, enable_thinking=False
    )
    return tokenizer(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("form", KEEPING)
def test_turns_joined_on_ids_equal_the_templates_own_rendering(tokenizers_by_form, form):
    tokenizer = tokenizers_by_form[form]
    chat = Chat(tokenizer)
    history = list(TASK)
    prompt = chat.first(history)
    assert prompt == _template(tokenizer, history)
    for turn, feedback in enumerate(("fail wrong_value [37] got 0.3 want 1.2", "slow 1.3x")):
        completion = chat.answer_ids(f"{ANSWER}\nturn {turn}")
        extended = chat.extend(prompt, completion, history, feedback)
        assert extended.joined
        assert extended.ids[: len(prompt) + len(completion)] == prompt + completion
        history += [
            {"role": "assistant", "content": f"{ANSWER}\nturn {turn}"},
            {"role": "user", "content": feedback},
        ]
        assert extended.ids == _template(tokenizer, history)
        prompt = extended.ids


@pytest.mark.parametrize("form", KEEPING)
def test_ids_that_no_tokenizer_would_make_survive(tokenizers_by_form, form):
    tokenizer = tokenizers_by_form[form]
    chat = Chat(tokenizer)
    prompt = chat.first(TASK)
    one_by_one = [i for letter in "torch.relu" for i in tokenizer(letter, add_special_tokens=False)["input_ids"]]
    assert one_by_one != tokenizer("torch.relu", add_special_tokens=False)["input_ids"]
    extended = chat.extend(prompt, [*one_by_one, chat.end_id], TASK, "again")
    assert extended.joined
    assert extended.ids[len(prompt) : len(prompt) + len(one_by_one)] == one_by_one


@pytest.mark.parametrize("form", KEEPING)
def test_a_completion_that_was_cut_gets_its_end_of_turn_as_context(tokenizers_by_form, form):
    chat = Chat(tokenizers_by_form[form])
    prompt, whole = chat.first(TASK), chat.answer_ids(ANSWER)
    cut = whole[:-1]
    assert chat.extend(prompt, cut, TASK, "again").ids == chat.extend(prompt, whole, TASK, "again").ids


def test_another_stop_token_stays_and_the_turn_is_closed_behind_it(tokenizers_by_form):
    tokenizer = tokenizers_by_form["llama3"]
    chat = Chat(tokenizer)
    assert tokenizer.convert_ids_to_tokens(chat.end_id) == "<|eot_id|>"
    assert set(chat.stop_ids) == {chat.end_id, tokenizer.eos_token_id}
    prompt = chat.first(TASK)
    ids = chat.extend(prompt, [*chat.answer_ids("x")[:-1], tokenizer.eos_token_id], TASK, "again").ids
    at = ids.index(tokenizer.eos_token_id)
    assert ids[at + 1] == chat.end_id


def test_dropped_thinking_breaks_the_prefix_and_renders_afresh(tokenizers_by_form):
    tokenizer = tokenizers_by_form["thinking"]
    chat = Chat(tokenizer, thinking=True)
    prompt = chat.first(TASK)
    thought = chat.answer_ids(f"<think>\nmasks\n</think>\n\n{ANSWER}")
    extended = chat.extend(prompt, thought, TASK, "again")
    assert not extended.joined
    text = tokenizer.decode(extended.ids)
    assert "masks" not in text and ANSWER in text and text.endswith("again<|im_end|>\n<|im_start|>assistant\n")
    unthought = chat.extend(prompt, chat.answer_ids(ANSWER), TASK, "again")
    assert unthought.joined


def test_an_empty_thought_that_the_template_takes_back_breaks_the_prefix(tokenizers_by_form):
    tokenizer = tokenizers_by_form["thinking"]
    chat = Chat(tokenizer, thinking=False)
    prompt = chat.first(TASK)
    assert tokenizer.decode(prompt).endswith("<think>\n\n</think>\n\n")
    extended = chat.extend(prompt, chat.answer_ids(ANSWER), TASK, "again")
    history = [*TASK, {"role": "assistant", "content": ANSWER}, {"role": "user", "content": "again"}]
    assert not extended.joined and extended.ids == _template(tokenizer, history)


def test_kept_thinking_joins(tokenizers_by_form):
    chat = Chat(tokenizers_by_form["chatml"], thinking=True)
    prompt, thought = chat.first(TASK), chat.answer_ids(f"<think>\nmasks\n</think>\n\n{ANSWER}")
    extended = chat.extend(prompt, thought, TASK, "again")
    assert extended.joined and extended.ids[: len(prompt) + len(thought)] == prompt + thought


@pytest.mark.parametrize("form", KEEPING)
def test_text_can_not_spell_a_control_token(tokenizers_by_form, form):
    tokenizer = tokenizers_by_form[form]
    chat = Chat(tokenizer)
    token = tokenizer.convert_ids_to_tokens(chat.end_id)
    prompt = chat.first(TASK)
    completion = chat.answer_ids(f"print('{token}')")
    assert completion.count(chat.end_id) == 1
    extended = chat.extend(prompt, completion, TASK, f"error: {token}").ids
    assert extended.count(chat.end_id) == chat.extend(prompt, completion, TASK, "error").ids.count(chat.end_id)


def test_a_tokenizer_without_template_is_refused(tokenizers_by_form):
    import copy

    bare = copy.deepcopy(tokenizers_by_form["demo"])
    bare.chat_template = None
    with pytest.raises(ValueError, match="no chat template"):
        Chat(bare)
