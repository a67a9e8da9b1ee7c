"""trl's own `GRPOTrainer._compute_loss` on our log-probs: the method runs on an object without a model.

Its advantages and its vLLM correction are lines inside a method of 600 lines that also generates, and can't be called
by themselves; verl, skyrl and areal stand for those formulas.
"""

from collections import defaultdict
from types import SimpleNamespace

import torch
from parity.compare import Case, Rows
from trl import GRPOTrainer

from core.algorithms import kl, objectives


class Loss(GRPOTrainer):
    """GRPOTrainer made without its constructor, which wants a model; log-probs are handed in."""

    def __init__(self, case: Case, **settings: object) -> None:
        accelerator = SimpleNamespace(gather=lambda x: x, reduce=lambda x, reduction: x, num_processes=1,
                                      gather_for_metrics=lambda x: x, sync_gradients=True)  # fmt: skip
        self.__dict__ |= {
            "accelerator": accelerator, "model": SimpleNamespace(training=True), "aux_loss_enabled": False,
            "top_entropy_quantile": 1.0, "off_policy_mask_threshold": None, "importance_sampling_level": "token",
            "beta": 0.0, "loss_type": "dapo", "epsilon_low": 0.2, "epsilon_high": 0.28, "use_vllm": False,
            "vllm_importance_sampling_correction": False, "current_gradient_accumulation_steps": 1,
            "max_completion_length": 64, "_entropy_bonus_enabled": False, "use_adaptive_entropy": False,
            "_metrics": defaultdict(lambda: defaultdict(list)),
            "args": SimpleNamespace(use_bias_correction_kl=False, delta=None, steps_per_generation=1),
        } | settings  # fmt: skip
        self.case = case

    def _get_per_token_logps_and_entropies(self, model, *args, **kwargs):
        return model, torch.zeros_like(model), None

    def __call__(self, logprobs: torch.Tensor, **extra: torch.Tensor) -> torch.Tensor:
        case = self.case
        ids = torch.zeros_like(case.old, dtype=torch.int64)
        inputs = {
            "prompt_ids": ids[:, :1], "prompt_mask": torch.ones_like(ids[:, :1]), "completion_ids": ids,
            "completion_mask": case.mask.double(), "advantages": case.advantages, "old_per_token_logps": case.old,
            "ref_per_token_logps": case.reference, "num_items_in_batch": case.mask.sum().double(),
        }  # fmt: skip
        return self._compute_loss(logprobs, inputs | extra)


def compare(rows: Rows) -> None:
    case = Case()
    flat, mask, seq = case.flat_mask, case.flat_mask, case.sequence
    adv, old, ref = case.per_token(case.advantages).flatten(), case.old.flatten(), case.reference.flatten()

    def clip(x, denominator, dual=None, constant=0):
        out = objectives.ppo_clip(x.flatten(), old, adv, clip_low=0.2, clip_high=0.28, dual_clip=dual, mask=flat)
        return case.reduced(out.loss, denominator, constant)

    rows.loss("GRPO loss (clip, sequence mean)", lambda x: clip(x, "sequence"), Loss(case, loss_type="grpo"), case.new)
    rows.loss("DAPO loss (clip-higher, token mean)", lambda x: clip(x, "token"), Loss(case), case.new)
    rows.loss(
        "Dr.GRPO loss (constant)", lambda x: clip(x, "constant", constant=64), Loss(case, loss_type="dr_grpo"), case.new
    )

    def cispo(x, high):
        out = objectives.cispo(x.flatten(), old, adv, clip_low=1.0, clip_high=high, mask=flat)
        return case.reduced(out.loss, "token")

    rows.loss("CISPO loss", lambda x: cispo(x, 0.5), Loss(case, loss_type="cispo", epsilon_high=1.5), case.new,
              "their epsilon_high is the bound itself: ours + 1")  # fmt: skip
    rows.loss("CISPO loss, same setting", lambda x: cispo(x, 1.5), Loss(case, loss_type="cispo", epsilon_high=1.5),
              case.new, "1", differs=True)  # fmt: skip

    def gspo(x):
        out = objectives.gspo(x.flatten(), old, adv, seq, clip_low=0.05, clip_high=0.08, mask=mask)
        return case.reduced(out.loss, "sequence")

    theirs = Loss(case, loss_type="grpo", importance_sampling_level="sequence", epsilon_low=0.05, epsilon_high=0.08)
    rows.loss("GSPO loss (sequence mean)", gspo, theirs, case.new)

    args = SimpleNamespace(use_bias_correction_kl=False, delta=1.5, steps_per_generation=1)
    rows.loss("dual clip (delta)", lambda x: clip(x, "token", dual=1.5), Loss(case, args=args), case.new)

    def with_kl(x, weighted):
        flat_x = x.flatten()
        token_kl = kl.kl_ratio_weighted(flat_x, old, ref, mask=mask) if weighted else kl.kl(flat_x, ref, mask=mask)
        return clip(x, "token") + case.reduced(0.1 * token_kl, "token")

    rows.loss("KL k3 in the loss", lambda x: with_kl(x, False), Loss(case, beta=0.1), case.new)
    args = SimpleNamespace(use_bias_correction_kl=True, delta=None, steps_per_generation=1)
    rows.loss("KL k3, ratio-weighted", lambda x: with_kl(x, True), Loss(case, beta=0.1, args=args), case.new)

    from core.algorithms.corrections import off_policy_sequence_mask

    gap = off_policy_sequence_mask(case.new.flatten(), old, adv, seq, 0.05, mask=flat).view_as(case.old)
    opsm = GRPOTrainer.get_off_policy_mask(case.advantages[:, None], case.new, case.old, case.mask.double(), 0.05)
    rows.value("off-policy sequence mask", gap, opsm.expand_as(gap) * case.mask)
