"""The learner's loss, token by token, from log-probs and the columns of a packed row; and the figures of a step.

`TokenLoss` is what is trained: loss = Σ weight · (ŵ·clip + c_kl·k3 - c_H·H), see `core.algorithms.objectives`. It holds
for any subset of rows, so that the head may be asked for it chunk by chunk. `figures` are what a step reports of it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from core.algorithms.corrections import token_tis
from core.algorithms.objectives import kl_k3, ppo_clip
from core.training.metrics import MAXIMA, SUMS
from core.training.packing import Packed
from core.training.settings import TrainerSettings


@dataclass(frozen=True)
class Terms:
    """Parts of the loss for some rows, each [rows]."""

    per_token: Tensor
    """Before the weight; with gradient when log-probs have one."""
    objective: Tensor
    """The clipped surrogate times its importance weight."""
    clipped: Tensor
    tis: Tensor
    proximal: Tensor
    kl: Tensor


class TokenLoss:
    """The loss of one packed row. reference: float32 [trained tokens] log-probs of the reference policy, or None."""

    def __init__(self, settings: TrainerSettings, packed: Packed, reference: Tensor | None = None) -> None:
        self._settings, self._packed, self._reference = settings, packed, reference

    def terms(self, logprobs: Tensor, entropies: Tensor, rows: slice) -> Terms:
        """Log-probs and entropies are those of `rows`, float32 [rows]."""
        s, p = self._settings, self._packed
        behaviour = p.behaviour[rows]
        proximal = logprobs.detach() if s.proximal == "recompute" else behaviour
        objective, _, clipped = ppo_clip(
            logprobs, proximal, p.advantages[rows], clip_low=s.clip_low, clip_high=s.clip_high
        )
        tis = token_tis(proximal, behaviour, s.tis_cap)  # all 1 when the proximal policy is the behaviour
        objective = tis * objective
        per_token = objective
        if s.entropy_coef:
            per_token = per_token - s.entropy_coef * entropies
        kl = torch.zeros_like(behaviour)
        if self._reference is not None:
            kl = kl_k3(logprobs, self._reference[rows])
            per_token = per_token + s.kl_coef * kl
        return Terms(per_token, objective, clipped, tis, proximal, kl)

    def __call__(self, logprobs: Tensor, entropies: Tensor, rows: slice = slice(None)) -> Tensor:
        """Summed loss of `rows`, a scalar."""
        return (self._packed.weights[rows] * self.terms(logprobs, entropies, rows).per_token).sum()

    @torch.no_grad()
    def figures(self, logprobs: Tensor, entropies: Tensor, version: int) -> tuple[Tensor, Tensor]:
        """(SUMS, MAXIMA) over the row's trained tokens, float64, in their order. version: of the policy that trains."""
        p = self._packed
        t = self.terms(logprobs, entropies, slice(None))
        real = p.weights > 0  # the token of an empty micro-batch has weight 0
        drift = (logprobs - p.behaviour).double()
        lag = (version - p.versions).double()
        columns = {
            "loss": p.weights * t.per_token,
            "policy_loss": p.weights * t.objective,
            "tokens": torch.ones_like(t.tis),
            "entropy": entropies,
            "kl": t.kl,
            "drift": drift,
            "drift_k3": torch.expm1(-drift) + drift,
            "ratio": drift.clamp(-20, 20).exp(),
            "clipped": t.clipped,
            "tis": t.tis,
            "tis_cut": (t.proximal - p.behaviour).exp() > self._settings.tis_cap,
            "advantage_abs": p.advantages.abs(),
            "lag": lag,
            "not_finite": ~torch.isfinite(logprobs) | ~torch.isfinite(t.per_token),
        }
        zero = torch.zeros((), dtype=torch.float64, device=logprobs.device)
        table = torch.stack([columns[name].double() for name in SUMS])
        sums = torch.where(real, table, zero).sum(1)
        tops = {"ratio": columns["ratio"], "drift_abs": drift.abs(), "lag": lag}
        highs = torch.where(real, torch.stack([tops[name] for name in MAXIMA]), zero - torch.inf).amax(1)
        return sums, highs
