"""The critic of PPO: a body of its own with one number per position instead of a vocabulary.

    critic = Critic(settings, load_lm(settings.model), device)
    values = critic.values(packed)                        # before the update, without gradient
    ... advantages and targets from them (`core.training.token_credit`) ...
    critic.backward(packed, old_values, targets); critic.update(critic.grad_norm())

A value is of the state before the token that it stands beside: V_t is read where the log-prob of token t is read. The
head starts at zero, so that a fresh critic says nothing and advantages are the returns.
Source: PPO (arXiv 1707.06347) with generalised advantage estimation (arXiv 1506.02438).
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from core.algorithms.token_advantages import value_loss
from core.training.model import PolicyModel, gather, load_adamw, prepare
from core.training.packing import Packed
from core.training.settings import TrainerSettings


class ValueModel(PolicyModel):
    """A causal LM's body and a value head."""

    def __init__(self, lm: Any) -> None:
        super().__init__(lm)
        width = lm.config.hidden_size
        lm.set_output_embeddings(nn.Linear(width, 1, bias=False))
        nn.init.zeros_(lm.get_output_embeddings().weight)

    def forward(self, packed: Packed, *unused: Any) -> tuple[Tensor, ...]:
        """(values float32 [trained tokens],)"""
        return ((self.hidden(packed) @ self.lm.lm_head.weight.t()).float()[:, 0],)


class Critic:
    """The value model and its optimizer, on one rank; sharded like the policy when `mesh` is given."""

    def __init__(self, settings: TrainerSettings, lm: Any, device: torch.device, mesh: Any = None) -> None:
        self.settings = settings
        self.model = prepare(
            lm, device=device, dtype=settings.dtype, mesh=mesh, checkpointing=settings.checkpoint_level,
            compile_blocks=settings.compiled_on(device.type, lm.config.hidden_size),
            static_shapes=settings.pack_multiple > 0, joined=settings.join_products, kind=ValueModel,
        )  # fmt: skip
        self.model.attention = settings.attention
        self.optimizer = torch.optim.AdamW(
            [p for _, p in self.model.named_masters()], lr=settings.critic_lr, weight_decay=0.0, fused=True
        )

    @torch.no_grad()
    def values(self, packed: Packed) -> Tensor:
        """float32 [trained tokens]"""
        return self.model(packed)[0]

    def backward(self, packed: Packed, old_values: Tensor, targets: Tensor) -> Tensor:
        """Adds the gradient of Σ weight · ½ max((V - target)², (clip(V) - target)²), with clip(V) within `value_clip`
        of the old value; returns the loss, without gradient."""
        per_token = value_loss(self.model(packed)[0], old_values, targets, clip=self.settings.value_clip)
        loss = (packed.weights * per_token).sum()
        loss.backward()
        self.model.after_backward()
        return loss.detach()

    def grad_norm(self) -> float:
        """Before clipping; a collective when the model is sharded."""
        grads = [p.grad for _, p in self.model.named_masters() if p.grad is not None]
        return float(gather(torch.nn.utils.get_total_norm(grads)))

    def update(self, norm: float, *, apply: bool = True) -> None:
        """One step, the gradient of this `norm` clipped as the policy's is. A norm that is not finite, or a step that
        is not to be applied, changes nothing."""
        if apply and norm < float("inf"):
            if norm > self.settings.grad_clip:
                grads = [p.grad for _, p in self.model.named_masters() if p.grad is not None]
                torch._foreach_mul_(grads, self.settings.grad_clip / (norm + 1e-6))
            self.optimizer.step()
            self.model.after_update()
        self.optimizer.zero_grad(set_to_none=True)

    def tensors(self, device: torch.device | str | None = "cpu") -> Iterator[tuple[str, Tensor]]:
        """Masters and optimizer state, whole, on `device` (None: where they are), as
        `critic.<parameter>[.<state>]`. Collective."""
        for name, parameter in self.model.named_masters():
            yield f"critic.{name}.value", gather(parameter.detach()).to(device)
            for key, value in sorted(self.optimizer.state.get(parameter, {}).items()):
                yield f"critic.{name}.{key}", gather(value.detach()).to(device)

    @torch.no_grad()
    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """The reverse of `tensors`; others in the dictionary are passed over."""
        mine = {name.removeprefix("critic."): t for name, t in tensors.items() if name.startswith("critic.")}
        self.model.load_full_tensors({name: mine[f"{name}.value"] for name, _ in self.model.named_masters()})
        load_adamw(self.optimizer, self.model.named_masters(), mine)
