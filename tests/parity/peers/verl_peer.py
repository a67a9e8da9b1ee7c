"""verl's `core_algos` and `rollout_corr_helper`."""

import numpy as np
import torch
from parity.compare import Case, Rows
from verl.trainer.ppo import core_algos as verl
from verl.trainer.ppo import rollout_corr_helper as helper
from verl.workers.config import ActorConfig

from core.algorithms import advantages as adv_of
from core.algorithms import corrections, kl, objectives, token_advantages


def config(**settings: float) -> ActorConfig:
    defaults = {"strategy": "fsdp", "rollout_n": 1, "ppo_micro_batch_size_per_gpu": 1, "use_dynamic_bsz": True}
    return ActorConfig(**(defaults | settings))


def compare(rows: Rows) -> None:
    case = Case(seed=1)
    losses(rows, case)
    advantages(rows, case)
    corrected(rows, case)


def losses(rows: Rows, case: Case) -> None:
    mask, seq, old = case.flat_mask, case.sequence, case.old.flatten()
    padded_adv = case.per_token(case.advantages)
    adv, float_mask = padded_adv.flatten(), case.mask.double()

    def theirs(function, mode, **settings):
        return lambda x: function(case.old, x, padded_adv, float_mask, mode, config(**settings))[0]

    def clip(x, denominator, **kwargs):
        out = objectives.ppo_clip(x.flatten(), old, adv, clip_low=0.2, clip_high=0.28, mask=mask, **kwargs)
        return case.reduced(out.loss, denominator, case.old.shape[1])

    sides = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28}
    for mode, name in (
        ("token-mean", "token"),
        ("seq-mean-token-mean", "sequence"),
        ("seq-mean-token-sum-norm", "constant"),
    ):
        rows.loss(
            f"PPO dual clip, {mode}",
            lambda x, name=name: clip(x, name, dual_clip=3.0),
            theirs(verl.compute_policy_loss_vanilla, mode, clip_ratio_c=3.0, **sides),
            case.new,
            "2" if mode == "seq-mean-token-mean" else "",
            tolerance=1e-7 if mode == "seq-mean-token-mean" else 1e-9,
        )
    rows.loss("PPO clip without dual clip", lambda x: clip(x, "token"),
              theirs(verl.compute_policy_loss_vanilla, "token-mean", clip_ratio_c=1.5, **sides), case.new,
              "3", differs=True)  # fmt: skip
    rows.loss(
        "CISPO",
        lambda x: case.reduced(
            objectives.cispo(x.flatten(), old, adv, clip_low=0.2, clip_high=0.28, mask=mask).loss, "token"
        ),
        theirs(verl.compute_policy_loss_cispo, "token-mean", **sides),
        case.new,
    )
    rows.loss(
        "GSPO",
        lambda x: case.reduced(
            objectives.gspo(x.flatten(), old, adv, seq, clip_low=0.05, clip_high=0.08, mask=mask).loss, "token"
        ),
        theirs(verl.compute_policy_loss_gspo, "token-mean", clip_ratio_low=0.05, clip_ratio_high=0.08),
        case.new,
    )
    rows.loss(
        "DPPO, total variation",
        lambda x: case.reduced(
            objectives.dppo(x.flatten(), old, adv, low=0.1, high=0.1, cap=1.5, mask=mask).loss, "token"
        ),
        theirs(
            verl.compute_policy_loss_dppo_tv, "token-mean", clip_ratio_low=0.1, clip_ratio_high=0.1, clip_ratio_c=1.5
        ),
        case.new,
        "4",
        gradient_only=True,
    )
    for name in ("k2", "k3"):
        rows.loss(
            f"KL {name}",
            lambda x, name=name: kl.kl(x.flatten(), case.reference.flatten(), name, ceiling=10.0).sum(),
            lambda x, name=name: verl.kl_penalty(x, case.reference, name).sum(),
            case.new,
        )
    rows.value("KL k1 (for the reward)", kl.kl(case.new, case.reference, "k1"),
               verl.kl_penalty(case.new, case.reference, "k1"))  # fmt: skip


def advantages(rows: Rows, case: Case) -> None:
    rewards = token_advantages.outcome_rewards(case.returns, case.sequence, mask=case.flat_mask).view_as(case.old)
    index, float_mask = case.group.numpy(), case.mask.double()

    def ours(**kwargs):
        return adv_of.advantages(case.returns, case.group, **kwargs)

    full = torch.ones_like(float_mask)
    for what, got, want in (
        ("advantage GRPO (std)", ours(baseline="mean", scale="group"),
         verl.compute_grpo_outcome_advantage(rewards.clone(), full, index)[0]),
        ("advantage Dr.GRPO", ours(baseline="mean"),
         verl.compute_grpo_outcome_advantage(rewards.clone(), full, index, norm_adv_by_std_in_grpo=False)[0]),
        ("advantage RLOO", ours(baseline="leave_one_out"),
         verl.compute_rloo_outcome_advantage(rewards.clone(), full, index)[0]),
    ):  # fmt: skip
        rows.value(what, got, want[:, 0], "ours are float32", tolerance=1e-6)
    alone = np.arange(len(index))
    rows.value(
        "advantage of a singleton",
        adv_of.advantages(case.returns, torch.from_numpy(alone)),
        verl.compute_rloo_outcome_advantage(rewards.clone(), full, alone)[0][:, 0],
        "5",
        differs=True,
    )
    equal = torch.full((8, 1), 0.7)
    got = verl.compute_grpo_outcome_advantage(equal.clone(), torch.ones(8, 1), np.zeros(8, dtype=int))[0][:, 0]
    ours_equal = adv_of.advantages(equal[:, 0], torch.zeros(8, dtype=torch.int64), baseline="mean", scale="group")
    rows.value("advantage of equal returns", ours_equal, got, "6", tolerance=0.0, differs=True)

    holes = Case(seed=2, gaps=True)
    rewards = token_advantages.outcome_rewards(holes.returns, holes.sequence, mask=holes.flat_mask).view_as(holes.old)
    float_mask = holes.mask.double()
    settings = type("Config", (), {"gamma": 0.9})()
    theirs, _ = verl.compute_reinforce_plus_plus_outcome_advantage(rewards, float_mask, config=settings)
    got = token_advantages.reinforce_plus_plus(rewards.flatten(), holes.sequence, gamma=0.9, mask=holes.flat_mask)
    rows.value("REINFORCE++ over tool tokens", got, theirs.flatten())
    theirs, returns = verl.compute_gae_advantage_return(rewards, holes.values, float_mask, 0.97, 0.9)
    got, target = token_advantages.gae(
        rewards.flatten(), holes.values.flatten(), holes.sequence, gamma=0.97, lam=0.9, mask=holes.flat_mask
    )
    white = token_advantages.whiten(got, token_advantages.moments(got, holes.flat_mask), mask=holes.flat_mask)
    rows.value("GAE, whitened", white, theirs.flatten() * holes.flat_mask)
    rows.value("GAE returns", target, returns.flatten() * holes.flat_mask)
    rows.loss(
        "value loss, clipped",
        lambda x: holes.reduced(
            token_advantages.value_loss(
                x.flatten(), holes.values.flatten(), returns.flatten(), clip=0.2, mask=holes.flat_mask
            ),
            "token",
        ),
        lambda x: verl.compute_value_loss(x, returns, holes.values, float_mask, 0.2)[0],
        holes.values + 0.3 * torch.sin(torch.arange(holes.values.numel(), dtype=torch.float64)).view_as(holes.values),
    )


def corrected(rows: Rows, case: Case) -> None:
    p, mu, mask, seq = case.old.flatten(), case.behaviour.flatten(), case.flat_mask, case.sequence
    log_ratio, float_mask = case.old - case.behaviour, case.mask.double()

    def weights(level, threshold):
        return helper.compute_rollout_correction_weights(log_ratio, float_mask, level, threshold)[0].flatten()

    rows.value("token TIS", corrections.token_tis(p, mu, 1.5, mask=mask), weights("token", 1.5))
    rows.value("IcePop", corrections.icepop(p, mu, 0.7, 1.5, mask=mask), weights("token", "0.7_1.5"))
    rows.value("sequence TIS", corrections.sequence_tis(p, mu, seq, 1.5, mask=mask), weights("sequence", 1.5))
    for what, option, ours in (
        ("geometric sequence mask", "seq_mean_k1",
         corrections.sequence_mask(p, mu, seq, 1 / 1.1, 1 / 0.9, mask=mask)),
        ("product sequence mask", "seq_sum_k1",
         corrections.sequence_mask(p, mu, seq, 1 / 1.1, 1 / 0.9, aggregate="product", mask=mask)),
        ("token mask", "token_k1", corrections.token_mask(p, mu, 1 / 1.1, 1 / 0.9, mask=mask)),
    ):  # fmt: skip
        theirs = helper.compute_rollout_rejection_mask(log_ratio, float_mask, option, "0.9_1.1")[0]
        rows.value(what, ours, theirs.flatten(), "10")
