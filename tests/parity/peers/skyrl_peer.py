"""SkyRL's losses, advantages and off-policy corrections."""

import torch
from omegaconf import OmegaConf
from parity.compare import Case, Rows
from skyrl.backends.skyrl_train.utils import off_policy_correction_utils as off_policy
from skyrl.backends.skyrl_train.utils import ppo_utils as skyrl

from core.algorithms import advantages as adv_of
from core.algorithms import corrections, kl, objectives, token_advantages

FLOAT32 = "they compute the ratio in float32"


def compare(rows: Rows) -> None:
    case = Case(seed=5)
    mask, seq, old, mu = case.flat_mask, case.sequence, case.old.flatten(), case.behaviour.flatten()
    adv, float_mask = case.per_token(case.advantages).flatten(), case.mask.double()

    def theirs(function, reduction, low=0.2, high=0.28, **settings):
        config = OmegaConf.create({
            "eps_clip_low": low, "eps_clip_high": high, "clip_ratio_c": 3.0, "loss_reduction": reduction,
            "off_policy_correction": None,
            "cispo": {"cispo_eps_clip_low": 1.0, "cispo_eps_clip_high": 0.5, "cispo_anchor": "old"},
            "dppo": {"dppo_type": "binary_tv", "delta_low": 0.1, "delta_high": 0.1},
        } | settings)  # fmt: skip
        scaled = skyrl.apply_loss_reduction_to_advantages_minibatch(
            case.per_token(case.advantages), float_mask, reduction, len(case.returns), 64
        )
        return lambda x: function(x, case.old, scaled, config, float_mask)[0]

    def clip(x, denominator, **kwargs):
        out = objectives.ppo_clip(x.flatten(), old, adv, clip_low=0.2, clip_high=0.28, mask=mask, **kwargs)
        return case.reduced(out.loss, denominator, 64)

    for reduction, name in (
        ("token_mean", "token"),
        ("sequence_mean", "sequence"),
        ("seq_mean_token_sum_norm", "constant"),
    ):
        rows.loss(
            f"PPO clip, {reduction}",
            lambda x, name=name: clip(x, name),
            theirs(skyrl.ppo_policy_loss, reduction, policy_loss_type="regular"),
            case.new,
            FLOAT32,
            tolerance=1e-7,
        )
    rows.loss(
        "PPO dual clip",
        lambda x: clip(x, "token", dual_clip=3.0),
        theirs(skyrl.ppo_policy_loss, "token_mean", policy_loss_type="dual_clip"),
        case.new,
        FLOAT32,
        tolerance=1e-7,
    )
    rows.loss(
        "CISPO",
        lambda x: case.reduced(
            objectives.cispo(x.flatten(), old, adv, clip_low=1.0, clip_high=0.5, mask=mask).loss, "token"
        ),
        theirs(skyrl.compute_policy_loss_cispo, "token_mean"),
        case.new,
        FLOAT32,
        tolerance=1e-7,
    )
    rows.loss(
        "GSPO",
        lambda x: case.reduced(
            objectives.gspo(x.flatten(), old, adv, seq, clip_low=0.05, clip_high=0.08, mask=mask).loss, "sequence"
        ),
        theirs(skyrl.gspo_policy_loss, "sequence_mean", low=0.05, high=0.08),
        case.new,
    )
    rows.loss(
        "DPPO, total variation",
        lambda x: case.reduced(objectives.dppo(x.flatten(), old, adv, low=0.1, high=0.1, mask=mask).loss, "token"),
        theirs(skyrl.dppo_policy_loss, "token_mean"),
        case.new,
        FLOAT32,
        tolerance=1e-7,
    )
    rows.loss("KL k3", lambda x: kl.kl(x.flatten(), case.reference.flatten(), ceiling=10.0, mask=mask).sum(),
              lambda x: skyrl.compute_approx_kl(x, case.reference, float_mask, "k3").sum(), case.new)  # fmt: skip

    settings = OmegaConf.create({"token_tis_ratio_clip_high": 1.5, "sequence_tis_ratio_clip_high": 1.5,
                                 "geo_mask_low": 0.9, "geo_mask_high": 1.1, "product_mask_low": 0.5,
                                 "product_mask_high": 2.0, "token_mask_is_threshold_low": 0.7,
                                 "token_mask_is_threshold_high": 1.5, "outlier_token_is_threshold_low": 0.3,
                                 "outlier_token_is_threshold_high": 4.0})  # fmt: skip
    data = (case.old, case.behaviour, float_mask)
    for what, ours, other in (
        ("token TIS", corrections.token_tis(old, mu, 1.5, mask=mask),
         off_policy.compute_tis_ratio(*data, "token", settings)[0]),
        ("sequence TIS", corrections.sequence_tis(old, mu, seq, 1.5, mask=mask),
         off_policy.compute_tis_ratio(*data, "sequence", settings)[0]),
        ("geometric sequence mask", corrections.sequence_mask(old, mu, seq, 0.9, 1.1, mask=mask),
         off_policy.compute_sequence_mask(*data, "geometric", settings)[0]),
        ("product sequence mask", corrections.sequence_mask(old, mu, seq, 0.5, 2.0, aggregate="product", mask=mask),
         off_policy.compute_sequence_mask(*data, "product", settings)[0]),
        ("token mask", corrections.token_mask(old, mu, 0.7, 1.5, mask=mask),
         off_policy.compute_token_mask(*data, settings)[0]),
        ("token veto (outlier mask)", corrections.token_veto(old, mu, seq, 0.3, ceiling=4.0, mask=mask),
         off_policy.compute_outlier_token_mask(*data, settings)[0]),
    ):  # fmt: skip
        rows.value(what, ours, (other.double() * float_mask).flatten(), tolerance=1e-6)
    advantages(rows, case)


def advantages(rows: Rows, case: Case) -> None:
    full, index = torch.ones_like(case.old), case.group.numpy()
    rewards = token_advantages.outcome_rewards(case.returns, case.sequence, mask=case.flat_mask).view_as(case.old)
    for what, function, kwargs in (
        ("advantage GRPO (std)", skyrl.compute_grpo_outcome_advantage, {"baseline": "mean", "scale": "group"}),
        ("advantage RLOO", skyrl.compute_rloo_outcome_advantage, {"baseline": "leave_one_out"}),
        ("advantage MaxRL", skyrl.compute_maxrl_advantage, {"baseline": "maxrl"}),
    ):
        got = adv_of.advantages(case.returns, case.group, **kwargs)
        note = "8" if "MaxRL" in what else "theirs and ours are float32"
        rows.value(what, got, function(rewards.clone(), full, index)[0][:, 0], note, tolerance=1e-5)
    plain = Case(seed=6)
    holes = Case(seed=6, gaps=True)
    for what, data, differs in (("REINFORCE++", plain, False), ("REINFORCE++ over tool tokens", holes, True)):
        rewards = token_advantages.outcome_rewards(data.returns, data.sequence, mask=data.flat_mask).view_as(data.old)
        theirs, _ = skyrl.compute_reinforce_plus_plus_outcome_advantage(rewards, data.mask.double(), 0.9)
        got = token_advantages.reinforce_plus_plus(rewards.flatten(), data.sequence, gamma=0.9, mask=data.flat_mask)
        rows.value(what, got, theirs.flatten(), "9" if differs else "", differs=differs)
