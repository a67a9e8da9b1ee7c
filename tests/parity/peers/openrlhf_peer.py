"""OpenRLHF's `PolicyLoss`, from its file: the package imports flash-attn and deepspeed, which need a GPU to be built.

Of `openrlhf.models.utils` only `masked_mean` is needed; it is compiled from that file, unchanged.
"""

import ast
import importlib
import sys
import types
from pathlib import Path

import torch
from parity.compare import Case, Rows, bare

from core.algorithms import corrections, objectives


def load() -> types.ModuleType:
    """`openrlhf.models.loss` without the `__init__` of its package."""
    bare("openrlhf", "openrlhf.models")
    folder = Path(sys.modules["openrlhf.models"].__path__[0])
    utils = types.ModuleType("openrlhf.models.utils")
    tree = ast.parse((folder / "utils.py").read_text())
    names = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "masked_mean"]
    typing = ast.parse("import torch\nfrom typing import *").body
    exec(compile(ast.Module([*typing, *names], []), str(folder / "utils.py"), "exec"), utils.__dict__)
    sys.modules["openrlhf.models.utils"] = utils
    return importlib.import_module("openrlhf.models.loss")


def compare(rows: Rows) -> None:
    policy_loss = load().PolicyLoss
    case = Case(seed=7)
    mask, seq, old, mu = case.flat_mask, case.sequence, case.old.flatten(), case.behaviour.flatten()
    padded_adv, float_mask = case.per_token(case.advantages), case.mask.double()
    adv = padded_adv.flatten()

    def theirs(low=0.2, high=0.28, **settings):
        module = policy_loss(clip_eps_low=low, clip_eps_high=high, **settings)
        return lambda x: module(x, case.old, padded_adv, float_mask, case.behaviour)[0]

    def clip(x, denominator="token", weights: torch.Tensor | float = 1.0, **kwargs):
        out = objectives.ppo_clip(x.flatten(), old, adv, clip_low=0.2, clip_high=0.28, mask=mask, **kwargs)
        return case.reduced(weights * out.loss, denominator)

    rows.loss("PPO clip, token mean", clip, theirs(), case.new)
    rows.loss("PPO clip, sequence mean", lambda x: clip(x, "sequence"), theirs(token_level_loss=False), case.new)
    rows.loss("PPO dual clip", lambda x: clip(x, dual_clip=1.5), theirs(dual_clip=1.5), case.new)
    rows.loss(
        "GSPO",
        lambda x: case.reduced(
            objectives.gspo(x.flatten(), old, adv, seq, clip_low=0.05, clip_high=0.08, mask=mask).loss, "sequence"
        ),
        theirs(low=0.05, high=0.08, policy_loss_type="gspo"),
        case.new,
    )
    bounds = {"is_correction_threshold": (0.7, 1.5)}
    for what, weights, settings in (
        ("token TIS", corrections.token_tis(old, mu, 1.5, floor=0.7, mask=mask),
         {"is_correction_level": "token", "is_correction_mode": "clip"}),
        ("IcePop", corrections.icepop(old, mu, 0.7, 1.5, mask=mask),
         {"is_correction_level": "token", "is_correction_mode": "mask"}),
        ("geometric sequence mask with token weights",
         corrections.sequence_mask(old, mu, seq, 0.7, 1.5, mask=mask)
         * corrections.icepop(old, mu, 0.0, 1e6, mask=mask),
         {"is_correction_level": "seq", "is_correction_mode": "mask"}),
    ):  # fmt: skip
        rows.loss(what, lambda x, w=weights: clip(x, weights=w), theirs(**settings, **bounds), case.new)
