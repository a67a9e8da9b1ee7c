"""The demo's policy: small, complete, and never taught what it is examined in."""

import json
from itertools import islice
from pathlib import Path

from configs.load import load, load_sft
from core.tasks.compose import compositions
from core.tasks.loading import load_tasks
from core.tasks.split import side_of

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
    recipe = json.loads((POLICY / "recipe.json").read_text())["recipe"]
    taught = {c.structure for c in islice(compositions(recipe["data_seed"], "train"), recipe["data_count"])}
    config = load(CONFIGS / "demo.toml")
    heldout = load_tasks([source.model_dump() for source in config.tasks.heldout], "triton", "heldout")
    reinforced = load_tasks([source.model_dump() for source in config.tasks.train], "triton", "train")
    assert len(heldout) >= 100
    structures = {task.structure for task in heldout}
    assert all(side_of(structure) == "heldout" for structure in structures)
    assert not structures & taught
    assert not structures & {task.structure for task in reinforced}
