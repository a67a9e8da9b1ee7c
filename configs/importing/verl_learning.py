"""verl's algorithm as settings of ours: advantages, loss, KL, off-policy corrections (docs/switching.md)."""

import re

from configs.importing.reading import Reading

ACTOR = "actor_rollout_ref.actor."
CORRECTION = "algorithm.rollout_correction."
ESTIMATORS = {
    "grpo": ("group", "mean", "group"),
    "rloo": ("group", "leave_one_out", "none"),
    "reinforce_plus_plus": ("reinforce_plus_plus", "none", "batch"),
    "reinforce_plus_plus_baseline": ("reinforce_plus_plus", "mean", "batch"),
    "gae": ("gae", "none", "batch"),
}
"""(learner.advantage, baseline, scale) of each."""
OBJECTIVES = {"vanilla": "ppo_clip", "gspo": "gspo", "cispo": "cispo", "dppo_tv": "dppo"}
ESTIMATES = {
    "kl": "k1", "k1": "k1", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3", "k1+": "k2", "k3+": "k2",
}  # fmt: skip
DENOMINATORS = {"token-mean": "token", "seq-mean-token-mean": "rollout", "seq-mean-token-sum-norm": "constant"}
WEIGHTS = {"token": "token_tis", "sequence": "sequence_tis"}
MASKS = {
    "token_k1": {"name": "token_mask"},
    "seq_mean_k1": {"name": "sequence_mask"},
    "seq_sum_k1": {"name": "sequence_mask", "aggregate": "product"},
}


def algorithm(r: Reading) -> None:
    """The advantage."""
    name = r.text("algorithm.adv_estimator", "gae")
    by_std = r.switch("algorithm.norm_adv_by_std_in_grpo", True)
    lam, gamma = r.number("algorithm.lam", 1.0), r.number("algorithm.gamma", 1.0)
    if name not in ESTIMATORS:
        r.leave("algorithm.adv_estimator", "it has no counterpart; learner.advantage is ours (docs/algorithms.md)")
        return
    advantage, baseline, scale = ESTIMATORS[name]
    note = "ours compares turns (TRLOO) unless set" if advantage == "group" else ""
    r.set("learner.advantage", advantage, "algorithm.adv_estimator", note=note)
    r.set("learner.baseline", baseline, "algorithm.adv_estimator")
    if name == "grpo" and not by_std:
        r.set("learner.scale", "none", "algorithm.norm_adv_by_std_in_grpo")
    else:
        r.set("learner.scale", scale, "algorithm.adv_estimator")
    r.set("episodes.credit", "trajectory", "algorithm.adv_estimator", note="one sample with all its turns")
    if advantage != "group":
        r.set("learner.token_gamma", gamma, "algorithm.gamma", note="over tokens")
    else:
        r.leave("algorithm.gamma", f"acts on no advantage of {name} there; ours over turns is episodes.gamma")
    if advantage == "gae":
        r.set("learner.gae_lambda", lam, "algorithm.lam")
        r.carry("learner.critic_lr", "critic.optim.lr", r.number)
        r.carry("learner.value_clip", "critic.cliprange_value", r.number)
    else:
        r.leave("algorithm.lam", f"acts on no advantage of {name}")


def loss(r: Reading) -> None:
    """Objective, clip, entropy, denominator, KL."""
    mode = r.text(ACTOR + "policy_loss.loss_mode", "vanilla")
    objective = OBJECTIVES.get(mode or "", "ppo_clip")
    if mode not in OBJECTIVES:
        r.leave(ACTOR + "policy_loss.loss_mode", "it has no counterpart: learner.objective stays ppo_clip")
    else:
        note = "bounds are on the probability" if objective == "dppo" else ""
        r.set("learner.objective", objective, ACTOR + "policy_loss.loss_mode", note=note)
    both = r.number(ACTOR + "clip_ratio", 0.2)
    low, high = (r.number(ACTOR + f"clip_ratio_{side}", both) for side in ("low", "high"))
    if objective == "cispo":
        r.set("learner.clip_low", 1.0, ACTOR + "policy_loss.loss_mode", note="cispo has no lower bound")
        r.leave(ACTOR + "clip_ratio_low", "cispo has no lower bound")
    else:
        r.set("learner.clip_low", low, ACTOR + "clip_ratio_low", ACTOR + "clip_ratio")
    r.set("learner.clip_high", high, ACTOR + "clip_ratio_high", ACTOR + "clip_ratio")
    dual = r.number(ACTOR + "clip_ratio_c", 3.0)
    if objective == "ppo_clip":
        r.set("learner.dual_clip", dual, ACTOR + "clip_ratio_c")
    else:
        r.leave(ACTOR + "clip_ratio_c", f"objective {objective} has none")
    r.set("learner.entropy_coef", r.number(ACTOR + "entropy_coeff", 0.0), ACTOR + "entropy_coeff")
    mean = r.text(ACTOR + "loss_agg_mode", "token-mean") or ""
    if mean in DENOMINATORS:
        note = "the constant is rollout.max_new_tokens" if mean.endswith("norm") else ""
        r.set("learner.denominator", DENOMINATORS[mean], ACTOR + "loss_agg_mode", note=note)
    else:
        r.leave(ACTOR + "loss_agg_mode", "learner.denominator: token, sequence, constant or rollout; token stands")
    _kl(r)


def _kl(r: Reading) -> None:
    in_loss, coef = r.switch(ACTOR + "use_kl_loss", False), r.number(ACTOR + "kl_loss_coef", 0.001)
    kind = r.text(ACTOR + "kl_loss_type", "low_var_kl") or ""
    in_reward = r.switch("algorithm.use_kl_in_reward", False)
    reward, control = r.number("algorithm.kl_ctrl.kl_coef", 0.001), r.text("algorithm.kl_ctrl.type", "fixed")
    penalty = r.text("algorithm.kl_penalty", "kl")
    loss_names = (ACTOR + "kl_loss_coef", ACTOR + "use_kl_loss")
    reward_names = ("algorithm.kl_ctrl.kl_coef", "algorithm.use_kl_in_reward")
    if in_loss and coef:
        r.set("learner.kl_coef", coef, *loss_names)
        estimate = ESTIMATES.get(kind)
        if estimate in ("k2", "k3"):
            note = "the same gradient, other figures" if kind.endswith("+") else ""
            r.set("learner.kl_estimator", estimate, ACTOR + "kl_loss_type", note=note)
            if estimate == "k3":
                r.set("learner.kl_ceiling", 10.0, ACTOR + "kl_loss_type", note="theirs is bounded at 10")
        else:
            why = "k1 in the loss has a gradient of mean zero and is refused" if estimate else "it is no estimator here"
            r.set("learner.kl_estimator", "k3", note=f"{kind} is refused: k3 was taken")
            r.leave(ACTOR + "kl_loss_type", f"{why}: k3 was taken")
    elif in_reward and reward:
        r.set("learner.kl_in", "reward", "algorithm.use_kl_in_reward")
        r.set("learner.kl_estimator", "k1", "algorithm.kl_penalty")
        r.set("learner.kl_coef", reward, "algorithm.kl_ctrl.kl_coef")
        if ESTIMATES.get(penalty or "") != "k1":
            r.leave("algorithm.kl_penalty", "in the reward an estimate's value counts: k1 was taken")
        if control != "fixed":
            r.leave("algorithm.kl_ctrl.type", "no adaptive controller: the coefficient stays")
    else:
        note = "ours is on, at 0.01, unless set; 0 saves the reference's memory"
        r.set("learner.kl_coef", 0.0, ACTOR + "use_kl_loss", "algorithm.use_kl_in_reward", note=note)
    if not (in_loss and coef):
        for name in (ACTOR + "kl_loss_coef", ACTOR + "kl_loss_type"):
            r.leave(name, "there is no KL in the loss")
    if not in_reward:
        for name in ("algorithm.kl_ctrl.kl_coef", "algorithm.kl_ctrl.type", "algorithm.kl_penalty"):
            r.leave(name, "there is no KL in the reward")
    elif in_loss and coef:
        for name in reward_names:
            r.leave(name, "KL is in the loss or in the reward here: the loss's was taken")


def corrections(r: Reading, updates: int | None) -> None:
    """Proximal policy and the list of corrections."""
    bypass = r.switch(CORRECTION + "bypass_mode", False)
    weigh, cut = r.text(CORRECTION + "rollout_is"), r.text(CORRECTION + "rollout_is_threshold", "2.0") or "2.0"
    kind = r.text(CORRECTION + "loss_type", "ppo_clip")
    used = (CORRECTION + "rollout_is", CORRECTION + "rollout_is_threshold")
    made: list[dict[str, object]] = []
    reinforce = bypass and kind == "reinforce"
    if reinforce:
        r.set("learner.objective", "policy_gradient", CORRECTION + "loss_type", CORRECTION + "bypass_mode")
        r.settings.pop("learner.dual_clip", None)
        r.leave(ACTOR + "clip_ratio_c", "objective policy_gradient has none")
        if (bounds := _bounds(cut)) and bounds[0] is None:
            r.set("learner.tis_cap", bounds[1], CORRECTION + "rollout_is_threshold")
        if weigh == "sequence":
            r.leave(CORRECTION + "rollout_is", "policy_gradient weighs each token by its own ratio")
    elif bypass:
        r.set(
            "learner.proximal", "behaviour", CORRECTION + "bypass_mode", note="clipped around the policy that sampled"
        )
        if weigh:
            r.leave(CORRECTION + "rollout_is", 'learner.proximal = "behaviour" clips that ratio already')
    else:
        note = 'one update to a batch here, so its ratio is 1: "behaviour" clips' if (updates or 1) > 1 else ""
        r.set("learner.proximal", "recompute", CORRECTION + "bypass_mode", note=note)
        bounds = _bounds(cut)
        if weigh and (weigh not in WEIGHTS or bounds is None):
            r.leave(CORRECTION + "rollout_is", "learner.corrections has what there is (docs/algorithms.md)")
        elif weigh and bounds and bounds[0] is not None:
            if weigh == "token":
                made.append({"name": "icepop", "low": bounds[0], "high": bounds[1]})
            else:
                r.leave(CORRECTION + "rollout_is", "sequence_tis has an upper bound alone")
        elif weigh and bounds:
            made.append({"name": WEIGHTS[weigh], "high": bounds[1]})
    if r.switch(CORRECTION + "rollout_is_batch_normalize", False):
        r.leave(CORRECTION + "rollout_is_batch_normalize", "no batch normalization of weights")
    masks = _masks(r)
    note = "rejections bound the inverse ratio there: swapped and inverted" if masks else ""
    note = note or ("none; ours is token_tis at 2 unless set" if not made else "")
    names = (*used, CORRECTION + "rollout_rs", CORRECTION + "rollout_rs_threshold")
    if not reinforce or made or masks:
        r.set("learner.corrections", [*made, *masks], *names, note=note)
    if not weigh and not reinforce:
        r.leave(CORRECTION + "rollout_is_threshold", "without rollout_is it does nothing")


def _masks(r: Reading) -> list[dict[str, object]]:
    names = r.text(CORRECTION + "rollout_rs")
    bounds = r.text(CORRECTION + "rollout_rs_threshold")
    if names is None:
        return []
    wanted, limits = (re.split(r"\s*,\s*", text.strip("[] ")) for text in (names, bounds or ""))
    made: list[dict[str, object]] = []
    for number, name in enumerate(wanted):
        pair = _bounds(limits[min(number, len(limits) - 1)])
        if name not in MASKS or pair is None or pair[0] is None or pair[0] <= 0:
            r.leave(
                CORRECTION + "rollout_rs",
                f"{name}: token_k1, seq_mean_k1 and seq_sum_k1 with LOW_HIGH have counterparts",
            )
            continue
        made.append({**MASKS[name], "low": 1 / pair[1], "high": 1 / pair[0]})
    return made


def _bounds(text: str) -> tuple[float | None, float] | None:
    """2.0 is an upper one, "0.5_5.0" both."""
    try:
        values = [float(part) for part in text.strip("'\" ").split("_")]
    except ValueError:
        return None
    if not values or len(values) > 2 or not all(0 <= value < float("inf") for value in values) or values[-1] == 0:
        return None
    return (values[0] if len(values) == 2 else None), values[-1]
