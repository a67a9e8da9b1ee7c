"""The field's recipes written out once more: one sample and token at a time, from dense logits, in float64.

Nothing of `core.algorithms` or of the trainer is used here; each function is one paper's loss on the same samples.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch


@dataclass
class Row:
    """A sample with what dense models say about its trained tokens; [trained tokens] each."""

    sample: object
    pi: torch.Tensor
    entropy: torch.Tensor
    ref: torch.Tensor
    mu: torch.Tensor
    lag: list[int]
    values: torch.Tensor | None = None

    @property
    def n(self):
        return len(self.mu)

    @property
    def rollout(self):
        return (self.sample.group_id, self.sample.index)


def look(model, reference, samples, version=0, critic=None):
    """critic: (body, head weight [width]) in float64."""
    rows = []
    for s in samples:
        ids, at = torch.tensor(s.ids.astype(np.int64))[None], np.flatnonzero(s.mask)
        before, y = torch.tensor(at - 1), torch.tensor(s.ids[at].astype(np.int64))
        logp = torch.log_softmax(model(ids).logits[0], -1)[before]
        with torch.no_grad():
            ref = torch.log_softmax(reference(ids).logits[0], -1)[before]
        values = None if critic is None else (critic[0](ids).last_hidden_state[0] @ critic[1])[before]
        rows.append(
            Row(
                s, logp.gather(1, y[:, None])[:, 0], -(logp.exp() * logp).sum(-1), ref.gather(1, y[:, None])[:, 0],
                torch.tensor(s.logprobs[at].astype(np.float64)), [version - int(v) for v in s.versions[at]], values,
            )
        )  # fmt: skip
    return rows


def rollout_returns(rows, returns=None):
    out = {}
    for row in rows:
        out.setdefault(row.rollout, row.sample.ret if returns is None else returns[row.rollout])
    return out


def group_advantages(rows, kind, returns=None):
    """{rollout: A}; kind: mean, std, loo, maxrl."""
    all_returns, out = rollout_returns(rows, returns), {}
    for key, own in all_returns.items():
        mates = [r for k, r in all_returns.items() if k[0] == key[0]]
        n, mean = len(mates), sum(mates) / len(mates)
        if min(mates) == max(mates):
            out[key] = 0.0
        elif kind == "mean":
            out[key] = own - mean
        elif kind == "loo":
            out[key] = own - (sum(mates) - own) / (n - 1)
        elif kind == "maxrl":
            out[key] = (own - mean) / mean
        else:
            out[key] = (own - mean) / (math.sqrt(sum((r - mean) ** 2 for r in mates) / (n - 1)) + 1e-6)
    return out


def clip_loss(log_ratio, a, low, high, dual=None):
    r = torch.exp(log_ratio)
    loss = -torch.minimum(r * a, torch.clamp(r, 1 - low, 1 + high) * a)
    if dual is not None:
        loss = torch.where(torch.as_tensor(a) < 0, torch.minimum(loss, torch.as_tensor(-dual * a)), loss)
    return loss


def k3(row):
    d = row.ref - row.pi
    return torch.exp(d) - 1 - d


def tokens(rows):
    return sum(row.n for row in rows)


def trloo(rows, **_):
    total = 0.0
    for row in rows:
        mates = [r.sample.ret for r in rows
                 if (r.sample.group_id, r.sample.turn) == (row.sample.group_id, row.sample.turn)]  # fmt: skip
        alike = min(mates) == max(mates)
        a = 0.0 if alike else row.sample.ret - (sum(mates) - row.sample.ret) / (len(mates) - 1)
        w = torch.exp(row.pi.detach() - row.mu).clamp(max=2.0)
        total = total + (w * -torch.exp(row.pi - row.pi.detach()) * a + 0.01 * k3(row) - 0.001 * row.entropy).sum()
    return total / tokens(rows)


def grpo(rows, **_):
    a = group_advantages(rows, "std")
    return sum(
        (clip_loss(r.pi - r.mu, a[r.rollout], 0.2, 0.2) + 0.04 * k3(r)).mean() for r in rows
    ) / len(rows)  # fmt: skip


def dr_grpo(rows, budget, **_):
    a = group_advantages(rows, "mean")
    return sum(clip_loss(r.pi - r.mu, a[r.rollout], 0.2, 0.2).sum() for r in rows) / (len(rows) * budget)


def runs(mask):
    longest = here = 0
    for m in mask:
        here = here + 1 if m else 0
        longest = max(longest, here)
    return longest


def dapo(rows, budget, **_):
    penalty = {}
    for row in rows:
        over = runs(row.sample.mask) - (budget - 8)
        penalty[row.rollout] = min(penalty.get(row.rollout, 0.0), -min(max(over / 8, 0.0), 1.0))
    returns = {k: r + penalty[k] for k, r in rollout_returns(rows).items()}
    dull = {g for g, _ in returns if len({r for k, r in returns.items() if k[0] == g}) == 1}
    kept = [row for row in rows if row.sample.group_id not in dull]
    a = group_advantages(kept, "std", returns)
    return sum(clip_loss(r.pi - r.mu, a[r.rollout], 0.2, 0.28).sum() for r in kept) / tokens(kept)


def rloo(rows, budget, **_):
    returns = rollout_returns(rows)
    for row in rows:
        returns[row.rollout] -= 0.05 * float((row.pi - row.ref).detach().sum())
    a = group_advantages(rows, "loo", returns)
    total = sum((-a[r.rollout] * torch.exp((r.pi - r.mu).detach()).clamp(max=2.0) * r.pi).sum() for r in rows)
    return total / (len(rows) * budget)


def whitened(per_row):
    flat = torch.cat(per_row)
    std = torch.sqrt(flat.var(unbiased=True) + 1e-8)
    return [(x - flat.mean()) / std for x in per_row]


def reinforce_plus_plus(rows, baseline=False, **_):
    advantages = group_advantages(rows, "mean") if baseline else rollout_returns(rows)
    per_row = []
    for row in rows:
        cost = torch.zeros(row.n) if baseline else 0.01 * (row.pi - row.ref).detach()
        per_row.append(torch.stack([advantages[row.rollout] - cost[t:].sum() for t in range(row.n)]).double())
    total = 0.0
    for row, a in zip(rows, whitened(per_row), strict=True):
        total = total + clip_loss(row.pi - row.mu, a, 0.2, 0.2).sum()
        if baseline:
            total = total + 0.01 * (0.5 * (row.ref - row.pi) ** 2).sum()
    return total / tokens(rows)


def reinforce_plus_plus_baseline(rows, **_):
    return reinforce_plus_plus(rows, baseline=True)


def ppo(rows, **_):
    """Policy's loss; the critic's is `ppo_value`."""
    per_row = [gains - row.values.detach() for row, gains in zip(rows, ppo_targets(rows), strict=True)]
    total = 0.0
    for row, a in zip(rows, whitened(per_row), strict=True):
        total = total + clip_loss(row.pi - row.mu, a, 0.2, 0.2, dual=3.0).sum()
    return total / tokens(rows)


def ppo_targets(rows):
    out = []
    for row in rows:
        v, rewards = row.values.detach(), -0.05 * (row.pi - row.ref).detach()
        rewards[-1] += row.sample.ret
        gains = []
        for t in range(row.n):  # A_t = Σ λ^k δ_{t+k}
            deltas = [rewards[k] + (v[k + 1] if k + 1 < row.n else 0.0) - v[k] for k in range(t, row.n)]
            gains.append(sum(0.95**k * d for k, d in enumerate(deltas)) + v[t])
        out.append(torch.stack(gains))
    return out


def ppo_value(rows):
    """At the first update the clip around the old value holds nothing: V is the old value."""
    total = sum(((row.values - target) ** 2).sum() for row, target in zip(rows, ppo_targets(rows), strict=True))
    return 0.5 * total / tokens(rows)


def cispo(rows, **_):
    a = group_advantages(rows, "std")
    return sum(
        (-a[r.rollout] * torch.exp(r.pi - r.mu).detach().clamp(0.0, 5.0) * r.pi).sum() for r in rows
    ) / tokens(rows)  # fmt: skip


def gspo(rows, **_):
    a = group_advantages(rows, "std")
    return sum(clip_loss((r.pi - r.mu).mean(), a[r.rollout], 3e-4, 4e-4) for r in rows) / len(rows)


def dppo(rows, **_):
    a, total = group_advantages(rows, "mean"), 0.0
    for row in rows:
        adv = a[row.rollout]
        moved = (row.pi.exp() - row.mu.exp()).detach()
        keep = (moved <= 0.2) if adv > 0 else (moved >= -0.2)
        total = total + (keep * -adv * torch.exp(row.pi - row.mu)).sum()
    return total / tokens(rows)


def maxrl(rows, **_):
    a = group_advantages(rows, "maxrl")
    return sum(clip_loss(r.pi - r.mu, a[r.rollout], 0.2, 0.28).sum() for r in rows) / tokens(rows)


def decoupled(rows, **_):
    returns, a = list(rollout_returns(rows).values()), group_advantages(rows, "mean")
    mean = sum(returns) / len(returns)
    std = math.sqrt(sum((r - mean) ** 2 for r in returns) / (len(returns) - 1)) + 1e-6
    total = 0.0
    for row in rows:
        share = torch.tensor([(lag - 1) / lag if lag else 0.0 for lag in row.lag], dtype=torch.float64)
        p = row.mu + share * (row.pi.detach() - row.mu)
        w = torch.exp(p - row.mu).clamp(max=5.0)
        total = total + (w * clip_loss(row.pi - p, a[row.rollout] / std, 0.2, 0.2)).sum()
    return total / tokens(rows)


def icepop(rows, **_):
    a = group_advantages(rows, "std")
    sizes = {}
    for row in rows:
        sizes[row.rollout] = sizes.get(row.rollout, 0) + row.n
    total = 0.0
    for row in rows:
        rho = torch.exp(row.pi.detach() - row.mu)
        w = torch.where((rho >= 0.5) & (rho <= 5.0), rho, torch.zeros_like(rho))
        total = total + (w * -a[row.rollout] * torch.exp(row.pi - row.pi.detach())).sum() / sizes[row.rollout]
    return total / len(sizes)


def dr_kernel(rows, **_):
    total = 0.0
    for row in rows:
        mates = [r.sample.ret for r in rows
                 if (r.sample.group_id, r.sample.turn) == (row.sample.group_id, row.sample.turn)]  # fmt: skip
        alike = min(mates) == max(mates)
        a = 0.0 if alike else row.sample.ret - (sum(mates) - row.sample.ret) / (len(mates) - 1)
        rho = torch.exp(row.pi.detach() - row.mu)
        keep = 0.999 <= float(torch.exp((row.pi.detach() - row.mu).mean())) <= 1.001 and float(rho.min()) >= 1e-4
        total = total + (keep * -torch.exp(row.pi - row.pi.detach()) * a + 0.01 * k3(row) - 0.001 * row.entropy).sum()
    return total / tokens(rows)


def deepseek(rows, **_):
    a, total = group_advantages(rows, "mean"), 0.0
    for row in rows:
        adv = a[row.rollout]
        keep = not (adv < 0 and float((row.mu - row.pi.detach()).mean()) > 0.1)
        r = torch.exp(row.pi - row.mu)
        total = total + (keep * clip_loss(row.pi - row.mu, adv, 0.2, 0.28) + 0.01 * r * k3(row)).sum()
    return total / tokens(rows)


RECIPES = {
    "TRLOO (default)": trloo,
    "GRPO": grpo,
    "Dr.GRPO": dr_grpo,
    "DAPO": dapo,
    "RLOO": rloo,
    "REINFORCE++": reinforce_plus_plus,
    "REINFORCE++-baseline": reinforce_plus_plus_baseline,
    "PPO": ppo,
    "CISPO": cispo,
    "GSPO": gspo,
    "DPPO": dppo,
    "MaxRL": maxrl,
    "decoupled PPO (AReaL)": decoupled,
    "IcePop": icepop,
    "Dr.Kernel's filters": dr_kernel,
    "DeepSeek-V3.2": deepseek,
}
