"""Float32 masters beside a model that computes in half precision, on one rank and without sharding.

    parameter (bfloat16)   what forward and backward see
    master (float32)       what the optimizer sees; `master.grad` sums micro-batches in float32
    collect()              after every backward pass: gradients go from parameters to masters
    refresh()              after an update: copies masters into parameters

This is what FSDP2's mixed precision does, less its gathering and scattering: on one rank these are copies of every
parameter in float32, twice a micro-batch. Many tensors go in one launch, since one by one they would cost more time of
the host than of the GPU; the half-precision gradients of one micro-batch are whole in memory when activations are gone.
Frozen parameters have no master.
"""

import torch
from torch import Tensor, nn

_TOGETHER = 64
"""Gradients that are handed on in one go; so many exist in both types."""


class Masters:
    """Masters of `module`'s trainable parameters; turns all its floating parameters into `dtype`."""

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        self._pairs: list[tuple[nn.Parameter, nn.Parameter]] = []
        self._of: dict[int, nn.Parameter] = {}
        for parameter in module.parameters():
            if not parameter.dtype.is_floating_point:
                continue  # quantised
            if parameter.requires_grad:
                master = nn.Parameter(parameter.detach().float().clone())
                self._pairs.append((parameter, master))
                self._of[id(parameter)] = master
            parameter.data = parameter.data.to(dtype)

    def of(self, parameter: nn.Parameter) -> nn.Parameter:
        """The master of a parameter; a frozen one is its own."""
        return self._of.get(id(parameter), parameter)

    @torch.no_grad()
    def collect(self) -> None:
        """Adds the parameters' gradients to the masters' and forgets them."""
        ready = [(p, m) for p, m in self._pairs if p.grad is not None]
        for at in range(0, len(ready), _TOGETHER):
            some = ready[at : at + _TOGETHER]
            wide = [torch.empty_like(master) for _, master in some]
            torch._foreach_copy_(wide, [p.grad for p, _ in some])  # type: ignore[misc]
            sums: list[Tensor] = []
            parts: list[Tensor] = []
            for (parameter, master), part in zip(some, wide, strict=True):
                parameter.grad = None
                if master.grad is None:
                    master.grad = part
                else:
                    sums.append(master.grad)
                    parts.append(part)
            if sums:
                torch._foreach_add_(sums, parts)

    @torch.no_grad()
    def refresh(self) -> None:
        """Parameters are the masters, rounded."""
        if self._pairs:
            torch._foreach_copy_([p for p, _ in self._pairs], [m for _, m in self._pairs])
