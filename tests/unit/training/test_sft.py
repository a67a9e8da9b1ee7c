"""Examples are rendered as reinforcement learning renders them; a policy folder is whole and learns."""

import json
import sys
from collections import Counter
from itertools import islice

import numpy as np
import pytest
import torch

from configs.load import ConfigError
from core.episodes.chat import Chat
from core.episodes.extract import candidate_of
from core.episodes.prompts import feedback_message, first_messages
from core.tasks.compose_mistakes import MISTAKES
from core.tasks.pairs import pairs
from core.training import sft, sft_data, sft_feedback
from core.training.sft_tokenizer import train_tokenizer

VERDICTS = sft_feedback.load("configs/demo-feedback.json")
SHARES = sft_data.Shares(mistakes=0.5, repair_mistakes=0.3, second_turns=0.5, staged=0.2, slow_turns=0.2)


@pytest.fixture(scope="module")
def dialogues():
    return list(sft_data.dialogues(3, 200, SHARES, VERDICTS))


@pytest.fixture(scope="module")
def chat(dialogues):
    texts = [text for d in dialogues for text in sft_data.texts_of(d)]
    return Chat(train_tokenizer(texts, vocab=400, context_tokens=1024))


def test_the_recorded_feedback_covers_every_mistake():
    assert set(VERDICTS) == {*MISTAKES, sft_data.SLOW}
    assert all(v.kind == ("pass" if kind == sft_data.SLOW else "fail") for kind in VERDICTS for v in VERDICTS[kind])


def test_dialogues_are_repeatable_and_mixed_as_asked(dialogues):
    assert dialogues == list(sft_data.dialogues(3, 200, SHARES, VERDICTS))
    kinds = Counter((d.feedback or "first").split()[0] for d in dialogues)
    assert 20 <= kinds["slow"] <= 65 and 50 <= kinds["fail"] <= 110 and 50 <= kinds["first"] <= 110
    assert all(candidate_of(d.answer) is not None for d in dialogues)
    assert 0.3 < np.mean([d.mistake is not None for d in dialogues if d.previous is None]) < 0.7
    speed_ups = [d for d in dialogues if d.feedback and d.feedback.startswith("slow")]
    assert all("tmp_ptr" in d.previous and "tmp_ptr" not in d.answer and d.mistake is None for d in speed_ups)
    plain = sft_data.dialogues(3, 20, sft_data.Shares(), {})
    assert [d.answer for d in plain] == [sft_data.answer_text(p.kernel) for p in pairs(3, 20)]
    with pytest.raises(ValueError, match="no recorded verdict"):
        list(sft_data.dialogues(3, 20, SHARES, {}))


def test_ids_are_those_of_reinforcement_learning(dialogues, chat):
    pair = next(p for p in pairs(3, 50, second_turns=1.0))
    verdict = VERDICTS[pair.previous_mistake][0]
    messages = first_messages(pair.task, "compact")
    said = feedback_message(verdict, None, "compact", 0)
    dialogue = sft_data.Dialogue(messages, sft_data.answer_text(pair.previous), said, "x", None)
    example = sft_data.tokenize(dialogue, chat)

    first = chat.first(messages)
    sampled = chat.answer_ids(sft_data.answer_text(pair.previous))
    extended = chat.extend(first, sampled, messages, said)
    assert extended.joined and example.prompt.tolist() == extended.ids
    assert example.prompt[: len(first)].tolist() == first and example.answer[-1] == chat.end_id
    text = chat.tokenizer.decode(example.prompt)
    assert text.endswith(f"<|end|><|user|>{said}<|end|><|assistant|>") and text.startswith("<|user|>def forward")


def test_the_tokenizer_says_every_text_and_knows_whole_lines(dialogues, chat):
    tokenizer = chat.tokenizer
    for text in ("héllo\n\tworld  →", dialogues[0].answer, "a\n\n\nb", " x"):
        assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text
    entries = [tokenizer.decode([i]) for i in range(len(tokenizer))]
    assert max(map(len, entries)) >= 20 and all(entry.count("\n") <= 1 for entry in entries)
    assert len(chat.answer_ids(dialogues[0].answer)) < 200
    with pytest.raises(ValueError, match="vocab = 200 is too small"):
        train_tokenizer(["a"], vocab=200, context_tokens=10)


def test_processes_give_the_same_examples(dialogues, chat):
    for a, b in zip(sft_data.tokenize_all(dialogues, chat, 2), sft_data.tokenize_all(dialogues, chat), strict=True):
        np.testing.assert_array_equal(a.prompt, b.prompt)
        np.testing.assert_array_equal(a.answer, b.answer)


def test_batches_are_epochs_of_similar_lengths():
    lengths = np.random.default_rng(0).integers(10, 400, 512).tolist()
    drawn = list(islice(sft.batches(lengths, 16, seed=1), 64))  # two epochs
    assert Counter(i for batch in drawn for i in batch) == {i: 2 for i in range(512)}
    spread = np.mean([np.ptp([lengths[i] for i in batch]) for batch in drawn])
    assert spread < 0.3 * np.ptp(lengths)
    assert drawn == list(islice(sft.batches(lengths, 16, seed=1), 64))


def test_collate_by_hand():
    row = sft_data.Example(np.array([5, 6], np.int32), np.array([7, 8], np.int32))
    other = sft_data.Example(np.array([4], np.int32), np.array([9], np.int32))
    ids, picked, targets = sft.collate([row, other], pad_id=0)
    assert ids.shape == (2, 32) and ids[0, :5].tolist() == [5, 6, 7, 8, 0]
    assert picked.tolist() == [1, 2, 32] and targets.tolist() == [7, 8, 9]


def test_jsonl_dialogues(tmp_path):
    path = tmp_path / "data.jsonl"
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    path.write_text(json.dumps({"messages": turns}) + "\n")
    assert sft_data.read_jsonl(path, 5, 0) == [sft_data.Dialogue(turns[:1], None, None, "a", None)]
    path.write_text(json.dumps({"messages": turns[:1]}) + "\n")
    with pytest.raises(ValueError, match=r"data\.jsonl:1: .*assistant"):
        sft_data.read_jsonl(path, 5, 0)


def test_the_command_makes_a_policy_that_learns(tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from runners import sft as runner

    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        f'out = "{tmp_path}/policy"\nsteps = 30\nrows_per_step = 4\nwarmup_steps = 3\nlr = 0.01\ndevice = "cpu"\n'
        "[architecture]\nvocab = 380\nhidden = 32\nlayers = 1\nheads = 2\nkv_heads = 1\nhead_dim = 16\n"
        "intermediate = 48\ncontext_tokens = 640\n[data]\ncount = 64\nsecond_turns = 0.3\nmistakes = 0.5\n"
    )
    parser = sys.modules["argparse"].ArgumentParser()
    runner.add_parser(parser.add_subparsers())
    args = parser.parse_args(["sft", "--config", str(recipe), "data.seed=4"])
    assert runner.run(args) == 0
    folder = tmp_path / "policy"
    made = json.loads((folder / "recipe.json").read_text())
    losses = [loss for _, loss in made["loss_curve"]]
    assert losses[-1] < 0.8 * losses[0] and made["recipe"]["data_seed"] == 4 and made["examples"]["first"]["count"] > 30
    model = AutoModelForCausalLM.from_pretrained(folder)
    chat = Chat(AutoTokenizer.from_pretrained(folder))
    assert (
        model.dtype == torch.bfloat16 and model.config.tie_word_embeddings and chat.end_id == model.config.eos_token_id
    )
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []

    with pytest.raises(ConfigError, match="is there already"):
        runner.run(args)
    assert json.loads((folder / "recipe.json").read_text()) == made

    again = parser.parse_args(["sft", "--config", str(recipe), f"model={folder}", f"out={tmp_path}/second", "steps=3"])
    assert runner.run(again) == 0  # goes on from a policy, with its tokenizer
    assert json.loads((tmp_path / "second/recipe.json").read_text())["loss_curve"][0][1] < losses[0]
