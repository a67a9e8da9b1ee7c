"""The learner's loss, token by token, from log-probs and the columns of a packed row; and the figures of a step.

`TokenLoss` is what is trained: loss = Σ weight · (ŵ·objective + c_kl·kl - c_H·H), see `core.algorithms.objectives`. For
objectives that are sums over tokens it holds for any subset of rows, so that the head may be asked for it chunk by
chunk; the others want all rows at once (`TrainerSettings.whole_sequences`). `figures` are what a step reports of it.

Which ratio a correction looks at: p/μ, p the proximal policy. Where the objective's own ratio goes back to μ (p is μ,
or dppo and policy_gradient), masks look at π/μ instead, and there are no weights (`core.training.combinations`).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from core.algorithms import corrections as rules
from core.algorithms import objectives
from core.algorithms.diagnostics import sums_by_lag
from core.algorithms.kl import kl, kl_ratio_weighted
from core.algorithms.ratios import log_ratio, loglinear_proximal
from core.training.metrics import MAXIMA, SUMS
from core.training.packing import Packed
from core.training.settings import Correction, TrainerSettings


@dataclass(frozen=True)
class Columns:
    """What a rule may look at; all [rows], no gradient."""

    proximal: Tensor
    """Log-probs that the ratio over μ is made of."""
    behaviour: Tensor
    advantages: Tensor
    sequence: Tensor


def _mask_or_tis(c: Correction, x: Columns) -> Tensor:
    low, high = c.low or 0.0, torch.inf if c.high is None else c.high
    p, mu = x.proximal, x.behaviour
    table: dict[str, Callable[[], Tensor]] = {
        "token_tis": lambda: rules.token_tis(p, mu, high, floor=low),
        "icepop": lambda: rules.icepop(p, mu, low, high),
        "token_mask": lambda: rules.token_mask(p, mu, low, high),
        "sequence_tis": lambda: rules.sequence_tis(p, mu, x.sequence, high),
        "sequence_mask": lambda: rules.sequence_mask(p, mu, x.sequence, low, high, aggregate=c.aggregate),
        "token_veto": lambda: rules.token_veto(p, mu, x.sequence, low, ceiling=high),
        "off_policy_sequence_mask": lambda: rules.off_policy_sequence_mask(p, mu, x.advantages, x.sequence, high),
    }
    return table[c.name]()


@dataclass(frozen=True)
class Terms:
    """Parts of the loss for some rows, each [rows]."""

    per_token: Tensor
    """Before the weight; with gradient when log-probs have one."""
    objective: Tensor
    """The objective times its corrections."""
    held: Tensor
    """bool: the objective's bounds act"""
    corrections: tuple[Tensor, ...]
    """The weights of each correction, in the settings' order."""
    weight: Tensor
    """Their product."""
    ratio_source: Tensor
    """Log-probs of the policy whose ratio over μ the corrections look at."""


class TokenLoss:
    """The loss of one packed row. reference: float32 [trained tokens] log-probs of the reference policy, or None.
    version: of the policy that trains."""

    def __init__(
        self, settings: TrainerSettings, packed: Packed, reference: Tensor | None = None, version: int = 0
    ) -> None:
        self._settings, self._packed, self._reference, self._version = settings, packed, reference, version
        self._corrections = settings.corrected

    def _proximal(self, logprobs: Tensor, rows: slice) -> Tensor:
        p = self._packed
        if self._settings.proximal == "behaviour":
            return p.behaviour[rows]
        if self._settings.proximal == "recompute":
            return logprobs.detach()
        return loglinear_proximal(
            logprobs, p.behaviour[rows], p.versions[rows],
            proximal_version=self._version - 1, current_version=self._version,
        )  # fmt: skip

    def _objective(self, logprobs: Tensor, proximal: Tensor, rows: slice) -> objectives.TokenObjective:
        s, p = self._settings, self._packed
        mu, adv = p.behaviour[rows], p.advantages[rows]
        low, high = s.clip_low, s.clip_high
        if s.objective == "gspo":
            return objectives.gspo(logprobs, proximal, adv, p.sequence[rows], clip_low=low, clip_high=high)
        if s.objective == "cispo":
            return objectives.cispo(logprobs, proximal, adv, clip_low=low, clip_high=high)
        if s.objective == "dppo":
            return objectives.dppo(logprobs, mu, adv, low=low, high=high)
        if s.objective == "policy_gradient":
            return objectives.policy_gradient(logprobs, mu, adv, cap=s.tis_cap)
        if s.objective == "decoupled_ppo":
            return objectives.decoupled_ppo(
                logprobs, proximal, mu, adv, clip_low=low, clip_high=high, dual_clip=s.dual_clip, cap=s.tis_cap
            )
        return objectives.ppo_clip(logprobs, proximal, adv, clip_low=low, clip_high=high, dual_clip=s.dual_clip)

    def _kl(self, logprobs: Tensor, rows: slice) -> Tensor | None:
        s = self._settings
        if self._reference is None or s.kl_in == "reward":
            return None
        reference = self._reference[rows]
        if s.kl_ratio_weighted:
            mu = self._packed.behaviour[rows]
            return kl_ratio_weighted(logprobs, mu, reference, s.kl_estimator, ceiling=s.kl_ceiling)
        return kl(logprobs, reference, s.kl_estimator, ceiling=s.kl_ceiling)

    def terms(self, logprobs: Tensor, entropies: Tensor, rows: slice) -> Terms:
        """Log-probs and entropies are those of `rows`, float32 [rows]."""
        s, p = self._settings, self._packed
        proximal = self._proximal(logprobs, rows)
        out = self._objective(logprobs, proximal, rows)
        own = s.proximal == "behaviour" or s.objective in ("dppo", "policy_gradient")
        source = logprobs.detach() if own else proximal
        columns = Columns(source, p.behaviour[rows], p.advantages[rows], p.sequence[rows])
        weights = tuple(_mask_or_tis(c, columns) for c in self._corrections)
        product = torch.ones_like(source)
        for weight in weights:
            product = product * weight
        objective = product * out.loss
        per_token = objective
        if s.entropy_coef:
            per_token = per_token - s.entropy_coef * entropies
        penalty = self._kl(logprobs, rows)
        if penalty is not None:
            per_token = per_token + s.kl_coef * penalty
        return Terms(per_token, objective, out.held, weights, product, source)

    def __call__(self, logprobs: Tensor, entropies: Tensor, rows: slice = slice(None)) -> Tensor:
        """Summed loss of `rows`, a scalar."""
        return (self._packed.weights[rows] * self.terms(logprobs, entropies, rows).per_token).sum()

    @torch.no_grad()
    def figures(self, logprobs: Tensor, entropies: Tensor) -> tuple[Tensor, Tensor]:
        """Sums and maxima over the row's trained tokens, float64: SUMS, then the tokens that each correction sets to
        0, then the table by lag (`core.algorithms.diagnostics`), flat; and MAXIMA."""
        p = self._packed
        t = self.terms(logprobs, entropies, slice(None))
        real = p.weights > 0  # the token of an empty micro-batch has weight 0
        drift = (logprobs - p.behaviour).double()
        log_r = log_ratio(logprobs, p.behaviour).double()  # within bounds, so that no exponent overflows
        lag = (self._version - p.versions).double()
        to_reference = torch.zeros_like(logprobs)
        if self._reference is not None:
            to_reference = kl(logprobs.detach(), self._reference, "k3")
        columns = {
            "loss": p.weights * t.per_token,
            "policy_loss": p.weights * t.objective,
            "tokens": torch.ones_like(t.weight),
            "entropy": entropies,
            "kl": to_reference,
            "drift": drift,
            "drift_k3": torch.expm1(-log_r) + log_r,
            "ratio": log_r.exp(),
            "clipped": t.held,
            "tis": t.weight,
            "tis_cut": self._cut(t),
            "masked": t.weight == 0,
            "advantage_abs": p.advantages.abs(),
            "lag": lag,
            "not_finite": ~torch.isfinite(logprobs) | ~torch.isfinite(t.per_token),
        }
        zero = torch.zeros((), dtype=torch.float64, device=logprobs.device)
        table = torch.stack(
            [columns[name].double() for name in SUMS] + [(weight == 0).double() for weight in t.corrections]
        )
        sums = torch.where(real, table, zero).sum(1)
        by_lag = sums_by_lag(
            logprobs, p.behaviour, p.versions, self._version, held=t.held, weights=t.weight, entropies=entropies,
            mask=real,
        )  # fmt: skip
        tops = {"ratio": columns["ratio"], "drift_abs": drift.abs(), "lag": lag}
        highs = torch.where(real, torch.stack([tops[name] for name in MAXIMA]), zero - torch.inf).amax(1)
        return torch.cat([sums, by_lag.flatten()]), highs

    def _cut(self, t: Terms) -> Tensor:
        """bool [rows]: tokens whose importance weight was held at a bound of token_tis."""
        rho = torch.exp(log_ratio(t.ratio_source, self._packed.behaviour))
        out = torch.zeros_like(t.held)
        for c in self._corrections:
            if c.name == "token_tis":
                out |= (rho > (c.high or 0.0)) | (rho < (c.low or 0.0))
        return out
