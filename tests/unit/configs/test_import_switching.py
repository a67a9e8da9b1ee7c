"""The importer knows every option that docs/switching.md names in its tables, and agrees with them about ours."""

import re

import pytest

from configs.importing import slime, verl
from configs.importing.options import Option
from configs.importing.reading import Reading
from tests.unit.configs.imports import SLIME
from tests.unit.configs.test_switching_page import PAGE, SPAN, cells, named

UNKNOWN = "it is not known here"
SLIMES_VALUES = {
    "gspo", "cispo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "ppo", "low_var_kl", "k2", "k3", "nccl",
    "disk", "train.py", "train_async.py", "fully_async_rollout", "check_reward_nonzero_std", "icepop_function",
    "convert_torch_dist_to_hf.py", "convert_hf_to_torch_dist.py",
}  # fmt: skip
"""Values of options, programs, and functions, which stand in the tables without their option."""
VERLS_VALUES = {
    "reinforce_plus_plus", "reinforce_plus_plus_baseline", "gae", "remax", "opo", "gpg", "grpo_passk", "gdpo",
    "low_var_kl", "k3", "k1+", "k3+", "token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm", "separate_async",
    "colocate_async", "one_step_off_policy", "drop", "wait", "seq_mean_k1", "seq_sum_k1", "verl.model_merger",
    "convert_torch_dist_to_hf.py",
}  # fmt: skip
PREFIXES = (
    "", "actor_rollout_ref.", "actor_rollout_ref.actor.", "actor_rollout_ref.actor.policy_loss.",
    "actor_rollout_ref.actor.optim.", "actor_rollout_ref.actor.fsdp_config.", "actor_rollout_ref.model.",
    "algorithm.rollout_correction.", "reward_model.reward_kwargs.overlong_buffer_cfg.", "trainer.", "async_training.",
    "reward_model.reward_kwargs.",
)  # fmt: skip
"""What the tables leave out before a name."""


def rows():
    """(column, cell, here) of slime's and verl's columns of all tables."""
    found, columns = [], None
    for line in PAGE.read_text().splitlines():
        if not line.startswith("|"):
            columns = None
        elif columns is None:
            columns = cells(line)
        elif set(line) - set("|- "):
            row = dict(zip(columns, cells(line), strict=True))
            for column in columns:
                if column.startswith(("slime", "verl")):
                    found.append((column.split(",")[0].split(" ")[0], row[column], row["here"]))
    return found


def spans(trainer):
    return sorted({span for column, cell, _ in rows() if column == trainer for span in SPAN.findall(cell)})


def told(trainer, name, value="1"):
    """Why an option is left over, or nothing when it is carried over."""
    r = Reading([Option(name, (value,), 1, hydra=trainer == "verl")], trainer)
    (slime if trainer == "slime" else verl).convert(r, "train.py")
    return " ".join(one.why for one in r.left)


def test_the_page_has_columns_of_both():
    assert len(spans("slime")) > 80 and len(spans("verl")) > 80


@pytest.mark.parametrize("span", [s for s in spans("slime") if s not in SLIMES_VALUES])
def test_every_option_of_slime_is_known(span):
    name, _, value = span.partition(" ")
    assert re.fullmatch(r"[a-z0-9-]+", name), span
    assert UNKNOWN not in told("slime", name, value or "1")


@pytest.mark.parametrize(
    "span", [s for s in spans("verl") if s not in VERLS_VALUES and not s.startswith(('"', "python "))]
)
def test_every_option_of_verl_is_known(span):
    name, _, value = re.sub(r" .*", "", span).partition("=")
    assert any(UNKNOWN not in told("verl", prefix + name.rstrip("."), value or "1") for prefix in PREFIXES), span


@pytest.mark.parametrize("trainer", ["slime", "verl"])
def test_an_option_of_nobody_is_not_known(trainer):
    assert UNKNOWN in told(trainer, "frobnicate")


CARRIED = [
    ("slime", name, here)
    for column, cell, here in rows()
    if column == "slime" and len(SPAN.findall(cell)) == 1 and len(named(here)) == 1
    for name in [SPAN.findall(cell)[0].split(" ")[0]]
    if name not in SLIMES_VALUES and named(here)[0][1] is None
]


@pytest.mark.parametrize(("trainer", "name", "here"), CARRIED)
def test_an_option_that_is_one_setting_of_ours_is_carried_to_that(trainer, name, here):
    more = {"rm-type": "kernelbench"} if name == "gamma" else {}  # TritonForge's is another than slime's
    given = {**SLIME, **more, name: "16"}
    r = Reading([Option(one, (value,), 1) for one, value in given.items()], trainer)
    slime.convert(r, "train.py")
    assert named(here)[0][0] in [key for key, setting in r.settings.items() if name in setting.options]
