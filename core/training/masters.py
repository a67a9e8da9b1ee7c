"""Float32 masters beside a model that computes in half precision, on one rank and without sharding.

    parameter (bfloat16)   what forward and backward see; its gradient is handed on as soon as it is complete
    master (float32)       what the optimizer sees; `master.grad` sums micro-batches in float32
    refresh()              copies masters into parameters after an update

This is what FSDP2's mixed precision does, less its gathering and scattering: on one rank these are copies of every
parameter in float32, twice a micro-batch. Frozen parameters have no master.
"""

from functools import partial

import torch
from torch import Tensor, nn


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
                parameter.register_post_accumulate_grad_hook(partial(_hand_on, master))
            parameter.data = parameter.data.to(dtype)

    def of(self, parameter: nn.Parameter) -> nn.Parameter:
        """The master of a parameter; a frozen one is its own."""
        return self._of.get(id(parameter), parameter)

    @torch.no_grad()
    def refresh(self) -> None:
        """Parameters are the masters, rounded."""
        if self._pairs:
            torch._foreach_copy_([p for p, _ in self._pairs], [m for _, m in self._pairs])


def _hand_on(master: nn.Parameter, parameter: Tensor) -> None:
    assert parameter.grad is not None
    if master.grad is None:
        master.grad = parameter.grad.float()
    else:
        master.grad += parameter.grad
    parameter.grad = None
