"""The demo's policy: small, complete, and never taught what it is examined in."""

import json
from itertools import islice
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from configs.load import load, load_sft
from core.episodes.chat import Chat
from core.tasks.compose import compositions
from core.tasks.loading import load_tasks
from core.tasks.split import side_of
from core.training import sft_feedback
from core.training.sft_data import Shares, dialogues, tokenize

CONFIGS = Path(__file__).parents[3] / "configs"
POLICY = CONFIGS / "policies" / "demo"


def test_it_is_small_and_says_how_it_was_made():
    size = sum(path.stat().st_size for path in POLICY.iterdir())
    assert size <= 4_000_000
    recipe = json.loads((POLICY / "recipe.json").read_text())["recipe"]
    stated = load_sft(CONFIGS / "demo-sft.toml")
    assert (recipe["data_seed"], recipe["data_count"]) == (stated.data.seed, stated.data.count)
    assert recipe["training"]["steps"] == stated.steps
    assert recipe["architecture"]["hidden"] == stated.architecture.hidden


def test_held_out_structures_are_not_in_its_training_data():
    """A structure is on one side, and all of its data is drawn from one: the stream's beginning shows which."""
    recipe = json.loads((POLICY / "recipe.json").read_text())["recipe"]
    taught = {c.structure for c in islice(compositions(recipe["data_seed"], "train"), 3000)}
    assert len(taught) > 500 and all(side_of(structure) == "train" for structure in taught)
    config = load(CONFIGS / "demo.toml")
    heldout = load_tasks([source.model_dump() for source in config.tasks.heldout], "triton", "heldout")
    reinforced = load_tasks([source.model_dump() for source in config.tasks.train], "triton", "train")
    assert len(heldout) >= 100
    structures = {task.structure for task in heldout}
    assert all(side_of(structure) == "heldout" for structure in structures)
    assert not structures & taught
    assert not structures & {task.structure for task in reinforced}


def test_its_weights_and_its_tokenizer_are_of_one_training():
    """It finds the kernels that it was taught likely; with another run's vocabulary every id means something else."""
    chat = Chat(AutoTokenizer.from_pretrained(POLICY))
    model = AutoModelForCausalLM.from_pretrained(POLICY, dtype=torch.float32).eval()
    verdicts = sft_feedback.load(CONFIGS / "demo-feedback.json")
    losses = []
    for dialogue in dialogues(seed=11, count=8, shares=Shares(), verdicts=verdicts):
        example = tokenize(dialogue, chat)
        ids = torch.tensor([[*example.prompt, *example.answer]], dtype=torch.int64)
        with torch.no_grad():
            logits = model(ids).logits[0, len(example.prompt) - 1 : -1]
        wanted = torch.tensor(example.answer, dtype=torch.int64)
        losses.append(float(torch.nn.functional.cross_entropy(logits, wanted)))
    assert sum(losses) / len(losses) < 0.2, losses  # nats per token; the vocabulary of another training gave 1.1
