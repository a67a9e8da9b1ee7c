"""Blocks of a model, compiled one by one, and the way back from it.

A compiler that is wrong is found late: gradients that are not finite, or only worse than they should be. So a step
whose numbers are not finite is made once more with blocks as they are written, and when that cures it they stay so
(`Guard`).

The options of Inductor hold for a block's backward graph too, which is compiled at the first backward pass, when no
context manager around the forward pass is open any more: `torch.compile(options=...)` wraps the compiler that both
graphs go through, while `torch._inductor.config.patch` around a call reaches the forward graph alone.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import structlog
import torch
import torch.distributed as dist
from torch import nn

log = structlog.get_logger()
Numbers = dict[str, float]

BACKEND = "inductor"


def options() -> dict[str, Any]:
    """Of Inductor, as far as this torch knows them.

    comprehensive_padding: strides of intermediate results are rounded up to 128 bytes. Torch 2.11 reads the queries and
    keys of a block by rounded strides that it then did not give them: with heads whose size times the number of tokens
    is no multiple of 128 bytes (heads of 8, 80 or 96 elements; not of 64 or 128) outputs and gradients are silently
    wrong, or NaN where memory held some.

    triton.mix_order_reduction: the gradient of a norm's weight and of its input as one kernel, on from 2.10. Torch has
    had it write partial sums that nobody added up (its issues 190796 and 193061), silently; it takes effect from
    5 Mi elements, so that tests on small policies never meet it.
    """
    from torch._inductor import config

    known = config.get_config_copy()
    wanted = {"comprehensive_padding": False, "triton.mix_order_reduction": False}
    return {name: value for name, value in wanted.items() if name in known}


def compile_blocks(blocks: Iterable[nn.Module], *, static_shapes: bool = False) -> None:
    """Compiles every block, each when it is first called. static_shapes: for every size that comes, instead of for
    any size after the second."""
    # blocks differ in nothing that is guarded, but sizes and modes (reference, adapters off) make variants
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 64)
    extra: dict[str, Any] = {"options": options()} if BACKEND == "inductor" else {"backend": BACKEND}
    for block in blocks:
        block.compile(dynamic=False if static_shapes else None, **extra)


class Guard:
    """Whether a trainer's blocks run compiled: until that has been seen to be wrong, and not again in this process.

    All ranks must be told the same numbers, since a step that is made again is a round of collectives.
    """

    def __init__(self, blocks: Iterable[nn.Module], *, told: bool = True) -> None:
        """told: this is the rank that warns."""
        self._blocks = [block for block in blocks if block._compiled_call_impl is not None]
        self._told = told
        self._used = bool(self._blocks)

    @property
    def on(self) -> bool:
        return bool(self._blocks)

    def made_sure(self, make: Callable[[], Numbers]) -> Numbers:
        """What `make` answers, which makes a step's gradients afresh whenever it is called; made again with blocks as
        they are written when it is not finite. `compiled` and `compile_retry` are added where blocks were compiled."""
        numbers = make()
        if not self._used:
            return numbers
        retried = self.on and bool(not_finite(numbers))
        if retried:
            numbers = self._again(numbers, make)
        return numbers | {"compiled": float(self.on), "compile_retry": float(retried)}

    def _again(self, first: Numbers, make: Callable[[], Numbers]) -> Numbers:
        with as_written(self._blocks):
            try:
                second = make()
            except torch.OutOfMemoryError:  # as they are written, blocks keep more
                if dist.is_initialized() and dist.get_world_size() > 1:
                    raise  # the others wait in a collective
                return first
        if not not_finite(second):
            self.drop("gave numbers that are not finite where the same blocks uncompiled do not")
        return second

    def drop(self, why: str) -> None:
        """From now on blocks run as they are written."""
        for block in self._blocks:
            block._compiled_call_impl = None
        self._blocks = []
        if self._told:
            log.warning(f"compiled blocks {why}: not compiled from now on", torch=torch.__version__)


MUST_BE_FINITE = ("loss", "grad_norm", "value_loss", "value_grad_norm")


def not_finite(numbers: Numbers) -> set[str]:
    """Which of a step's numbers show that its gradients are of no use."""
    found = {name for name in MUST_BE_FINITE if not math.isfinite(numbers.get(name, 0.0))}
    return found | ({"not_finite_tokens"} if numbers["not_finite_tokens"] > 0 else set())


@contextmanager
def as_written(blocks: Sequence[nn.Module]) -> Iterator[None]:
    """Blocks run as they are written, and compiled as before afterwards; nothing is compiled anew."""
    calls = [block._compiled_call_impl for block in blocks]
    for block in blocks:
        block._compiled_call_impl = None
    try:
        yield
    finally:
        for block, call in zip(blocks, calls, strict=True):
            block._compiled_call_impl = call
