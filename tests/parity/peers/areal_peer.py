"""AReaL's `ppo_actor_loss_fn`, rejection sampling, log-linear proximal policy and overlong penalty."""

import areal  # noqa: F401  whole: its modules import each other in the order that it begins
import torch
from parity.compare import Case, Rows, bare

bare("areal.trainer", "areal.trainer.ppo")

from areal.api.cli_args import RejectionSamplingConfig  # noqa: E402
from areal.trainer.ppo.actor import compute_prox_logp_approximations  # noqa: E402
from areal.utils.data import KLEstimator  # noqa: E402
from areal.utils.functional import ppo_actor_loss_fn, reward_overlong_penalty  # noqa: E402

from core.algorithms import corrections, kl, objectives, ratios, rewards  # noqa: E402

FLOAT32 = "they compute the ratio in float32"


def compare(rows: Rows) -> None:
    case = Case(seed=3)
    mask, seq = case.flat_mask, case.sequence
    p, mu, padded_adv = case.old.flatten(), case.behaviour.flatten(), case.per_token(case.advantages)
    adv = padded_adv.flatten()

    def theirs(rejection=None, level="token", low=0.2, high=0.28, dual=None):
        return lambda x: ppo_actor_loss_fn(
            x, case.old, case.behaviour, padded_adv, low, case.mask, eps_clip_higher=high, c_clip=dual,
            rejection_sampling=rejection, importance_sampling_level=level,
        )[0]  # fmt: skip

    def decoupled(x, **kwargs):
        out = objectives.decoupled_ppo(x.flatten(), p, mu, adv, clip_low=0.2, clip_high=0.28, mask=mask, **kwargs)
        return case.reduced(out.loss, "token")

    def clip(x, weights=1.0, **kwargs):
        out = objectives.ppo_clip(x.flatten(), p, adv, clip_low=0.2, clip_high=0.28, mask=mask, **kwargs)
        return case.reduced(weights * out.loss, "token")

    rows.loss("PPO clip", clip, theirs(), case.new)
    positive = Case(seed=3)
    rows.loss("PPO dual clip", lambda x: clip(x, dual_clip=1.5), theirs(dual=1.5), positive.new)
    for action, beyond in (("clamp", "cut"), ("mask", "masked")):
        setting = RejectionSamplingConfig(level="token", action=action, metric="ratio", upper=1.5)
        rows.loss(f"decoupled PPO, {action}", lambda x, b=beyond: decoupled(x, cap=1.5, beyond_cap=b), theirs(setting),
                  case.new, FLOAT32, tolerance=1e-6)  # fmt: skip
    setting = RejectionSamplingConfig(level="sequence", action="mask", metric="ratio", agg="mean", lower=0.9, upper=1.1)
    keep = corrections.sequence_mask(p, mu, seq, 0.9, 1.1, mask=mask)
    mean = ratios.sequence_log_ratio(p, mu, seq, mean=True, mask=mask).exp()[seq]
    rows.loss("geometric sequence mask", lambda x: clip(x, keep * mean), theirs(setting), case.new,
              FLOAT32 + "; 7", tolerance=1e-6)  # fmt: skip
    rows.loss(
        "GSPO",
        lambda x: case.reduced(
            objectives.gspo(x.flatten(), p, adv, seq, clip_low=0.05, clip_high=0.08, mask=mask).loss, "token"
        ),
        theirs(level="sequence", low=0.05, high=0.08),
        case.new,
    )
    for name in ("k1", "k2", "k3"):
        ours = kl.kl(case.new, case.reference, name, ceiling=10.0)
        rows.value(f"KL {name}", ours, KLEstimator(name)(case.new, case.reference), FLOAT32, tolerance=1e-6)

    versions = torch.randint(0, 6, case.old.shape, generator=torch.Generator().manual_seed(4))
    approximated = compute_prox_logp_approximations(
        old_logp=case.behaviour, logprobs=case.new, versions=versions, current_version=6, method="loglinear"
    )["loglinear"]
    ours = ratios.loglinear_proximal(case.new, case.behaviour, versions, proximal_version=5, current_version=6)
    rows.value("log-linear proximal policy", ours, approximated, tolerance=1e-6)

    lengths = torch.tensor([5, 8, 9, 10])
    answer = reward_overlong_penalty(
        {
            "rewards": torch.zeros(4, dtype=torch.float64),
            "input_ids": torch.zeros(4, 10),
            "loss_mask": torch.arange(10)[None, :] < lengths[:, None],
        },
        overlong_tokens=4, overlong_penalty_factor=1.0, max_response_length=10,
    )  # fmt: skip
    rows.value("overlong penalty", rewards.overlong_penalty(lengths, max_tokens=10, buffer_tokens=4), answer["rewards"])
