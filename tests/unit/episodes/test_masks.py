"""The expected mask is found another way: by the places of the answers' characters in the rendered text."""

import copy

import numpy as np
import pytest

from core.episodes.chat import Chat
from core.episodes.masks import NAMES, loss_mask, rows
from tests.unit.episodes.families import family

MASKS = {"qwen": ("qwen3", "qwen2.5", "strict"), "llama": ("llama3.1",), "kernelllm": ("llama3.1",)}
MASKS |= {"llama3": ("llama3.1",), "llama3.1": ("llama3.1",)}
CASES = [(name, form, thinking) for name, forms in MASKS.items() for form in forms for thinking in (False, True)]
HEADER = "<|im_start|>assistant\n"
ANSWERS = ("```python\nclass ModelNew:\n    first = 1\n```", "import second\nassistant\nuser\n\n", "third```")
DIALOGUE = [
    {"role": "user", "content": "def forward(self, x): assistant\n return x"},
    {"role": "assistant", "content": ANSWERS[0]},
    {"role": "user", "content": "fail wrong_value\n\nassistant\n"},
    {"role": "assistant", "content": ANSWERS[1]},
    {"role": "user", "content": "<|im_start|> assistant\n slow 1.3x <|eot_id|>"},
    {"role": "assistant", "content": ANSWERS[2]},
]


def rendered(chat, messages):
    """(ids, expected mask) of a dialogue rendered whole by the tokenizer's own template."""
    plain = [chat._plain(message) for message in messages]
    text = chat.tokenizer.apply_chat_template(
        plain, tokenize=False, enable_thinking=chat.thinking, date_string="26 Jul 2024"
    )
    encoded = chat.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    wanted = np.zeros(len(text), bool)
    at = 0
    for message in plain:
        said = message["content"].strip() if "start_header_id" in chat.tokenizer.chat_template else message["content"]
        at = text.index(said, at)
        if message["role"] == "assistant":
            end = text.index("<|", at + len(said))
            begin = at
            if chat.thinking and text[:at].endswith("<think>\n\n</think>\n\n"):
                begin -= len("<think>\n\n</think>\n\n")  # the model says it where the template does not open it
            wanted[begin : text.index("|>", end) + 2] = True
        at += len(said)
    mask = [bool(wanted[a:b].all()) for a, b in encoded["offset_mapping"]]
    return np.array(encoded["input_ids"]), np.array(mask, np.uint8)


def check(mask, chat):
    ids, wanted = rendered(chat, DIALOGUE)
    found = mask(ids)
    assert found.dtype == np.uint8 and found.tolist() == wanted.tolist()
    said = chat.spell(ids[found == 1].tolist())
    assert [part.strip() for part in said.replace("<think>\n\n</think>\n\n", "").split(chat.spell([chat.end_id]))] == [
        *(answer.strip() for answer in ANSWERS),
        "",
    ]


@pytest.mark.parametrize(("name", "form", "thinking"), CASES)
@pytest.mark.parametrize("merging", [False, True])
def test_a_mask_is_on_the_answers_of_a_whole_rendered_dialogue(name, form, thinking, merging):
    chat = Chat(family(form, merging=merging), thinking=thinking)
    ids, wanted = rendered(chat, DIALOGUE)
    assert loss_mask(name, chat)(ids).tolist() == wanted.tolist()


def test_a_token_across_the_border_of_header_and_answer_is_not_trained_on():
    chat = Chat(family("qwen2.5", merging=True))
    ids = chat.tokenizer("<|im_start|>assistant\n\nuser<|im_end|>\n", add_special_tokens=False)["input_ids"]
    spelled = [chat.spell([i]) for i in ids]
    crossing = next(k for k, text in enumerate(spelled) if len("".join(spelled[: k + 1])) > len(HEADER))
    assert not "".join(spelled[: crossing + 1]).startswith(HEADER + "u") and HEADER not in spelled
    mask = loss_mask("qwen", chat)(ids).tolist()
    assert mask[: crossing + 1] == [0] * (crossing + 1) and mask[-2:] == [1, 0]


def _with_header(mask, chat):
    def wrong(ids):
        found = mask(ids).copy()
        for at in np.flatnonzero(np.diff(found.astype(int)) == 1):
            found[at - 1 : at + 1] = 1
        return found

    return wrong


MUTANTS = {
    "shifted right": lambda mask, chat: lambda ids: np.roll(mask(ids), 1),
    "shifted left": lambda mask, chat: lambda ids: np.roll(mask(ids), -1),
    "with the header": _with_header,
    "without the end of turn": lambda mask, chat: lambda ids: mask(ids) * (np.asarray(ids) != chat.end_id),
    "with every end of turn": lambda mask, chat: lambda ids: mask(ids) | (np.asarray(ids) == chat.end_id),
    "everything": lambda mask, chat: lambda ids: np.ones(len(ids), np.uint8),
    "only the last answer": lambda mask, chat: lambda ids: mask(ids) * (np.arange(len(ids)) > len(ids) * 2 // 3),
}


@pytest.mark.parametrize(("name", "form"), [(name, form) for name, forms in MASKS.items() for form in forms])
def test_the_check_itself_finds_every_wrong_mask(name, form):
    chat = Chat(family(form))
    mask = loss_mask(name, chat)
    check(mask, chat)
    for what, mutant in MUTANTS.items():
        with pytest.raises(AssertionError):
            check(mutant(mask, chat), chat)
            pytest.fail(f"a mask {what} passed")


@pytest.mark.parametrize(("form", "thinking"), [("qwen2.5", False), ("qwen3", True), ("strict", False)])
def test_rows_built_turn_by_turn_are_what_the_scan_says(form, thinking):
    _agree(Chat(family(form), thinking=thinking), "qwen")


@pytest.mark.parametrize("merging", [False, True])
def test_rows_of_llama_are_what_the_scan_says(merging):
    _agree(Chat(family("llama3.1", merging=merging)), "llama")


def _agree(chat, name):
    (row,) = rows(chat, DIALOGUE)
    assert row.mask.tolist() == loss_mask(name, chat)(row.ids).tolist()
    said = chat.spell(row.ids[row.mask == 1].tolist()).split(chat.spell([chat.end_id]))
    broken_up = [chat._plain({"role": "assistant", "content": answer})["content"] for answer in ANSWERS]
    assert said == [*broken_up, ""]
    # Off by one, or with the opening of the turn, the two would not agree.
    assert np.roll(row.mask, 1).tolist() != row.mask.tolist() != np.roll(row.mask, -1).tolist()
    assert row.mask[np.flatnonzero(row.mask)[0] - 1] == 0


def test_where_the_template_rewrites_each_turn_is_a_row_and_no_answer_is_trained_twice():
    chat = Chat(family("qwen3"), thinking=False)
    made = rows(chat, DIALOGUE)
    assert len(made) == 3
    for row, answer in zip(made, ANSWERS, strict=True):
        begin = int(np.flatnonzero(row.mask)[0])
        assert row.mask[begin:].all() and not row.mask[:begin].any()
        assert chat.spell(row.ids[begin:].tolist()) == answer + "<|im_end|>"
        assert chat.spell(row.ids[:begin].tolist()).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
        assert loss_mask("qwen", chat)(row.ids)[begin - 4 :].tolist() == row.mask[begin - 4 :].tolist()


def test_a_thought_that_is_part_of_the_answer_is_trained_on():
    chat = Chat(family("qwen3"), thinking=True)
    thought = [DIALOGUE[0], {"role": "assistant", "content": "<think>\nmasks\n</think>\n\nx = 1"}]
    (row,) = rows(chat, thought)
    whole, _ = rendered(chat, thought)
    assert row.ids.tolist() == whole[:-1].tolist()  # the template ends with a line end
    mask = loss_mask("qwen", chat)
    assert row.mask.tolist() == mask(row.ids).tolist() == mask(whole)[:-1].tolist()
    assert chat.spell(row.ids[row.mask == 1].tolist()) == "<think>\nmasks\n</think>\n\nx = 1<|im_end|>"


def test_a_thought_that_the_template_opens_is_not():
    chat = Chat(family("qwen3-thinking"), thinking=True)
    (row,) = rows(chat, [DIALOGUE[0], {"role": "assistant", "content": "masks\n</think>\n\nx = 1"}])
    assert row.mask.tolist() == loss_mask("qwen", chat)(row.ids).tolist()
    assert chat.spell(row.ids[row.mask == 1].tolist()) == "masks\n</think>\n\nx = 1<|im_end|>"


def test_another_end_of_turn_and_an_answer_without_end():
    tokenizer = family("llama3.1")
    chat = Chat(tokenizer)
    mask = loss_mask("llama", chat)
    prompt = chat.first(DIALOGUE[:1])
    answer = chat.answer_ids("x = 1")
    assert mask([*prompt, *answer[:-1]]).tolist() == [0] * len(prompt) + [1] * (len(answer) - 1)
    other = tokenizer.convert_tokens_to_ids("<|eom_id|>")
    extended = chat.extend(prompt, [*answer[:-1], other], DIALOGUE[:1], "again").ids
    wanted = [0] * len(prompt) + [1] * len(answer)
    assert mask(extended).tolist() == wanted + [0] * (len(extended) - len(wanted))
    assert mask([]).tolist() == [] and mask(prompt).tolist() == [0] * len(prompt)


def test_a_start_of_turn_that_was_sampled_inside_an_answer_opens_nothing():
    tokenizer = family("qwen2.5")
    chat = Chat(tokenizer)
    prompt, answer = chat.first(DIALOGUE[:1]), chat.answer_ids("x")
    start = tokenizer.convert_tokens_to_ids("<|im_start|>")
    header = tokenizer("assistant\n", add_special_tokens=False)["input_ids"]
    ids = [*prompt, start, *header, *answer]
    assert loss_mask("qwen", chat)(ids).tolist() == [0] * len(prompt) + [1] * (len(ids) - len(prompt))


def test_names_and_tokenizers_that_do_not_fit_are_refused():
    assert NAMES == ("qwen", "llama", "kernelllm", "llama3", "llama3.1")
    chat = Chat(family("qwen3"))
    with pytest.raises(ValueError, match=r"unknown loss mask 'gpt'; known: qwen, llama, kernelllm, llama3, llama3\.1"):
        loss_mask("gpt", chat)
    with pytest.raises(
        ValueError, match=r"no token <\|start_header_id\|> and no <\|eot_id\|>; masks that fit it: qwen"
    ):
        loss_mask("llama", chat)


@pytest.mark.parametrize("bad", [DIALOGUE[1:], DIALOGUE[:1], DIALOGUE[:3], [*DIALOGUE, DIALOGUE[1]], []])
def test_rows_want_an_alternating_dialogue(bad):
    with pytest.raises(ValueError, match="wanted user, assistant"):
        rows(Chat(family("qwen2.5")), copy.deepcopy(bad))
