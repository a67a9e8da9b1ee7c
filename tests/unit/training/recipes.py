"""The recipes of docs/algorithms.md as settings, and samples that make them differ."""

import re
from pathlib import Path

import msgspec
import numpy as np
import torch

from actors.learner_parts import trainer_settings
from configs.load import load
from core.training.model import gather, scatter_into
from tests.unit.training.conftest import make_samples

PAGE = Path(__file__).resolve().parents[3] / "docs" / "algorithms.md"
BUDGET = 24


def documented() -> dict[str, list[str]]:
    """{name: overrides of a config}"""
    rows = PAGE.read_text().split("## The field's names")[1].split("\n## ")[0].splitlines()
    out = {}
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        found = re.findall(r"`([\w.]+ = [^`]+)`", cells[1]) if len(cells) > 1 else []
        if found:
            out[cells[0]] = [f if "." in f.split(" = ")[0] else f"learner.{f}" for f in found]
    return out


def settings_of(name: str, folder: str, tmp: Path, **fields):
    """What the config makes of a recipe, on the tiny policy in float32."""
    path = tmp / "run.toml"
    path.write_text(f'model.path = "{folder}"\nmodel.dtype = "float32"\nlearner.device = "cpu"\nlearner.lr = 1e-3\n')
    overrides = [f"rollout.max_new_tokens={BUDGET}", "learner.max_tokens_per_rank=4096", *documented()[name]]
    return msgspec.structs.replace(trainer_settings(load(path, overrides)), **fields)


def batch(credit: str, groups: int = 3, seed: int = 11, model=None):
    """Groups of four; every other episode goes on in a second sample. The last group's returns are all equal.

    model: completions are drawn from it; behaviour log-probs are its own plus noise: none to speak of for the first
    member of a group, else small, with some tokens far off.
    """
    g = np.random.default_rng(seed)
    out = []
    for i, s in enumerate(make_samples(4 * groups, seed=seed, longest=2 * BUDGET)):
        s = msgspec.structs.replace(s, ret=0.3 if s.group_id == f"g{groups - 1}" else s.ret)
        out.append(s)
        if i % 2:
            ret = s.ret if credit == "trajectory" else float(g.choice([0.0, 0.3, 1.3]))
            ids = g.integers(0, 64, len(s.ids), dtype=np.int32)
            out.append(msgspec.structs.replace(s, turn=1, ret=ret, ids=ids))
    return out if model is None else [drawn(model, s, g) for s in out]


@torch.no_grad()
def drawn(model, s, g):
    ids, logprobs = s.ids.copy(), np.zeros(len(s.ids), np.float32)
    spread = 1e-4 if s.index == 0 else 0.15
    level = 0.0 if s.index == 0 else g.normal(0, 0.15)
    for t in np.flatnonzero(s.mask):
        logp = torch.log_softmax(model(torch.tensor(ids[:t].astype(np.int64))[None]).logits[0, -1].double(), -1)
        p = logp.exp().numpy()
        ids[t] = g.choice(len(p), p=p / p.sum())
        noise = level + g.normal(0, spread) + (g.normal(0, 1.5) if s.index and g.random() < 0.15 else 0.0)
        logprobs[t] = float(logp[int(ids[t])]) + noise
    return msgspec.structs.replace(s, ids=ids, logprobs=logprobs)


def shift(trainer, seed: int = 5, size: float = 0.02, norm: float = 6.0) -> None:
    """Moves the policy away from the reference, makes it sure of some tokens, and gives a critic something to say."""
    g = torch.Generator().manual_seed(seed)

    def change(parameter, by):
        full = gather(parameter.detach())
        scatter_into(parameter, by(full, torch.randn(full.shape, generator=g)))

    with torch.no_grad():
        for parameter in trainer.model.parameters():
            change(parameter, lambda full, noise: full + size * noise)
        change(trainer.model.lm.model.norm.weight, lambda full, _: full * norm)
        if trainer.critic is not None:
            change(trainer.critic.model.lm.lm_head.weight, lambda full, noise: full + 0.2 * noise)
