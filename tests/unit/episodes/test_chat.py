import json
import threading

import pytest

from core.episodes.chat import Chat, generation_stop_ids
from tests.unit.episodes.families import FAMILIES, family

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


def _own(chat, messages, answer_next=True):
    """Ids of a dialogue by the tokenizer's own apply_chat_template."""
    found = chat.tokenizer.apply_chat_template(
        messages,
        tokenize=True,
        return_dict=False,
        add_generation_prompt=answer_next,
        enable_thinking=chat.thinking,
        date_string="26 Jul 2024",
    )
    return list(found)


def _dialogue(chat, answers):
    """Plays `answers` and checks every prompt against the template; returns which turns were joined."""
    history, prompt, joined = list(TASK), chat.first(TASK), []
    assert prompt == _own(chat, TASK)
    for number, answer in enumerate(answers):
        completion, feedback = chat.answer_ids(answer), f"fail wrong_value [{number}]"
        extended = chat.extend(prompt, completion, history, feedback)
        history += [{"role": "assistant", "content": answer}, {"role": "user", "content": feedback}]
        assert extended.ids == _own(chat, history)
        assert extended.joined == (extended.ids[: len(prompt) + len(completion)] == prompt + completion)
        joined.append(extended.joined)
        prompt = extended.ids
    return joined


THOUGHT = f"<think>\nmasks\n</think>\n\n{ANSWER}"


@pytest.mark.parametrize(
    ("name", "thinking", "answers", "joined"),
    [
        ("llama3.1", False, [ANSWER, "x = 1", ANSWER], [True, True, True]),
        ("llama3.1", False, [THOUGHT, THOUGHT], [True, True]),
        ("qwen2.5", False, [ANSWER, THOUGHT, ANSWER], [True, True, True]),
        ("strict", False, [ANSWER, ANSWER], [True, True]),
        ("qwen3", True, [THOUGHT, THOUGHT, THOUGHT], [False, False, False]),
        ("qwen3", True, [ANSWER, THOUGHT, ANSWER], [True, False, True]),
        ("qwen3", True, ["<think>\ncut off in the", ANSWER], [True, True]),
        ("qwen3", True, ["<think>\n\n</think>\n\n" + ANSWER], [False]),
        ("qwen3", False, [ANSWER, ANSWER], [False, False]),
        ("qwen3-thinking", True, [f"masks\n</think>\n\n{ANSWER}", f"more\n</think>\n\n{ANSWER}"], [False, False]),
    ],
)
@pytest.mark.parametrize("merging", [False, True])
def test_every_prompt_is_the_templates_and_a_rewritten_turn_is_not_joined(name, thinking, answers, joined, merging):
    chat = Chat(family(name, merging=merging), thinking=thinking)
    if not merging:
        assert _dialogue(chat, answers) == joined
        return
    # Merges across borders: ids of a rendered whole differ, and those that were sampled stay.
    history, prompt = list(TASK), chat.first(TASK)
    for answer, kept in zip(answers, joined, strict=True):
        completion = chat.answer_ids(answer)
        extended = chat.extend(prompt, completion, history, "again")
        history += [{"role": "assistant", "content": answer}, {"role": "user", "content": "again"}]
        assert extended.joined == kept
        assert not kept or extended.ids[: len(prompt) + len(completion)] == prompt + completion
        assert chat.spell(extended.ids) == chat.spell(_own(chat, history))
        prompt = extended.ids


def test_qwen3_opens_an_empty_thought_when_thinking_is_off():
    tokenizer = family("qwen3")
    assert Chat(tokenizer, thinking=False).opening() == "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    assert Chat(tokenizer, thinking=True).opening() == "<|im_start|>assistant\n"


def test_what_of_earlier_answers_is_left_has_no_thoughts():
    chat = Chat(family("qwen3"), thinking=True)
    extended = chat.extend(chat.first(TASK), chat.answer_ids(THOUGHT), TASK, "again")
    assert "masks" not in chat.spell(extended.ids) and ANSWER in chat.spell(extended.ids)


@pytest.mark.parametrize("name", [name for name, form in FAMILIES.items() if form[2]])
def test_bos_stands_once_whatever_the_tokenizer_adds(name):
    tokenizer = family(name, bos_first=True)
    assert tokenizer("x")["input_ids"][0] == tokenizer.bos_token_id
    for chat in (Chat(tokenizer), Chat(tokenizer).for_style("kernelllm")):
        prompt = chat.first([{"role": "user", "content": f"x {tokenizer.bos_token} y"}])
        extended = chat.extend(prompt, chat.answer_ids(ANSWER), TASK, f"again {tokenizer.bos_token}")
        for ids in (prompt, extended.ids):
            assert ids[0] == tokenizer.bos_token_id and ids.count(tokenizer.bos_token_id) == 1
        assert tokenizer.bos_token_id not in chat.answer_ids("x")


def test_llamas_system_message_is_always_there_with_a_date_that_does_not_move():
    chat = Chat(family("llama3.1"))
    head = "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n"
    assert chat.spell(chat.first(TASK)).startswith(
        f"{head}Today Date: 26 Jul 2024\n\n<|eot_id|><|start_header_id|>user"
    )
    system = [{"role": "system", "content": " Be short. "}, *TASK]
    assert chat.spell(chat.first(system)).startswith(f"{head}Today Date: 26 Jul 2024\n\nBe short.<|eot_id|>")


def test_a_default_system_message_is_part_of_the_first_prompt_only():
    chat = Chat(family("qwen2.5"))
    extended = chat.extend(chat.first(TASK), chat.answer_ids(ANSWER), TASK, "again")
    assert chat.spell(extended.ids).count("You are a coder.") == 1


def test_a_template_that_refuses_the_roles_says_so():
    chat = Chat(family("strict"))
    with pytest.raises(ValueError, match="refuses a dialogue of user, user: roles must alternate"):
        chat.first([*TASK, *TASK])


def test_trimmed_space_around_an_answer_is_no_rewriting_and_the_sampled_ids_stay():
    chat = Chat(family("llama3.1"))
    prompt, completion = chat.first(TASK), chat.answer_ids(f" \n{ANSWER}\n\n")
    extended = chat.extend(prompt, completion, TASK, "again")
    assert extended.joined and extended.ids[: len(prompt) + len(completion)] == prompt + completion


def test_the_generation_config_of_the_model_folder_names_further_ends_of_turn(tmp_path):
    tokenizer = family("llama3.1")
    ends = [tokenizer.convert_tokens_to_ids(token) for token in ("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>")]
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    from transformers import AutoTokenizer

    chat = Chat(AutoTokenizer.from_pretrained(tmp_path))
    assert chat.stop_ids == tuple(sorted(ends)) and chat.end_id == ends[-1]
    assert chat.for_style("kernelllm").stop_ids == chat.stop_ids
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": ends[0]}))
    assert generation_stop_ids(tmp_path) == (ends[0],)
    (tmp_path / "generation_config.json").write_text("{}")
    assert generation_stop_ids(tmp_path) == generation_stop_ids("") == generation_stop_ids(tmp_path / "none") == ()


@pytest.mark.parametrize("name", FAMILIES)
def test_text_is_what_was_sampled_without_tidying(name):
    tokenizer = family(name)
    tokenizer.clean_up_tokenization_spaces = True  # as Llama's configuration has it
    chat = Chat(tokenizer)
    code = "x = [1 , 2]  # don 't  do n't \nprint( 'a ?' , 'b !' )"
    assert chat.text(chat.answer_ids(code)) == code


def test_a_plain_completion_has_no_header_and_goes_on_behind_its_end():
    tokenizer = family("llama3.1", bos_first=True)
    chat = Chat(tokenizer)
    plain = chat.for_style("kernelllm")
    assert chat.for_style("compact") is chat and chat.for_style("kernelllm") is plain is plain.for_style("kernelllm")
    prompt = plain.first(TASK)
    assert plain.spell(prompt) == f"<|begin_of_text|>{TASK[0]['content']}\n"
    completion = plain.answer_ids(ANSWER)
    assert completion[-1] == tokenizer.eos_token_id == plain.end_id
    extended = plain.extend(prompt, completion, TASK, "fail")
    assert extended.joined and extended.ids[: len(prompt) + len(completion)] == prompt + completion
    assert plain.spell(extended.ids) == f"<|begin_of_text|>{TASK[0]['content']}\n{ANSWER}<|eot_id|>\nfail\n"
    bare = family("llama3.1")
    bare.chat_template = None
    assert Chat(bare, plain=True).first(TASK) == prompt


def test_a_chat_and_its_plain_twin_may_be_used_by_many_threads():
    chat = Chat(family("llama3.1"))
    chats = [chat, chat.for_style("kernelllm")]
    wanted = [each.first(TASK) for each in chats]
    wrong = []

    def use(number):
        for _ in range(50):
            each = chats[number % 2]
            if each.first(TASK) != wanted[number % 2] or each.text(each.answer_ids(ANSWER)) != ANSWER:
                wrong.append(number)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
