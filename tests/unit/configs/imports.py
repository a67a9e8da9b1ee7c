"""What the tests of import-config share: scripts of our own, and the recipe that is made of one, loaded."""

import tempfile
from pathlib import Path

from configs.importing.importer import import_file
from configs.load import load

SLIME = {
    "hf-checkpoint": "/m/Q",
    "num-rollout": "100",
    "rollout-batch-size": "16",
    "n-samples-per-prompt": "8",
    "global-batch-size": "128",
    "rollout-max-response-len": "2048",
}
VERL = {
    "actor_rollout_ref.model.path": "/m/Q",
    "actor_rollout_ref.rollout.n": "8",
    "data.train_batch_size": "64",
    "actor_rollout_ref.actor.ppo_mini_batch_size": "16",
    "trainer.total_training_steps": "100",
    "data.max_response_length": "2048",
}


def slime(program="train.py", without=(), **more):
    """A script; `a_b=3` is --a-b 3, True a flag, None leaves it out."""
    given = {k: v for k, v in SLIME.items() if k not in without} | {k.replace("_", "-"): v for k, v in more.items()}
    words = [
        f"   --{name}" if value is True else f"   --{name} {value}"
        for name, value in given.items()
        if value is not None
    ]
    return "\n".join(["#!/bin/bash", "ARGS=(", *words, ")", f"python3 {program} ${{ARGS[@]}}", ""])


def verl(more=None, program="verl.trainer.main_ppo", without=()):
    given = {k: v for k, v in VERL.items() if k not in without} | (more or {})
    words = " \\\n    ".join(f"{name}={value}" for name, value in given.items())
    return f"set -x\n\npython3 -m {program} \\\n    {words} $@\n"


def recipe(text, name="run-x.sh"):
    """(config, what was left over as {option: why}, the TOML). Fails where the recipe does not load."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_text(text)
        found = import_file(path)
        out = Path(folder) / "out.toml"
        out.write_text(found.toml)
        return load(out), {one.what: one.why for one in found.left}, found.toml


def line(toml, key):
    """The line of a key, with the comment line above it where its comment stands there."""
    lines = toml.splitlines()
    at = next(n for n, text in enumerate(lines) if text.startswith(f"{key} = "))
    return " ".join(lines[at - 1 : at + 1]) if lines[at - 1].startswith("# ") else lines[at]
