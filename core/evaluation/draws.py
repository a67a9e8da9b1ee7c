"""What the calls of one candidate are given: secret values, parameters, modes, sizes, and what each call is to show.

    original   judged sizes, values as get_inputs() gives them
    changed    judged sizes, other values in another distribution
    hidden     other sizes, for a module constructed anew (`variant` > 0)
    repeated   values, parameters and modes of an earlier call in new memory: the same output again, or it was
               remembered by address or is a race
The first call has the judged sizes; original and changed calls after it use the memory of the call before them. Which
call is which, its distribution, and its modes are drawn per candidate; every usable mode (training x gradients) is met
as far as the number of calls allows. Integers, masks, structural zeros and symmetry keep their meaning.
"""

import itertools
import operator
import random
from typing import Any, Literal

import msgspec
import torch

from core.evaluation import trees
from core.evaluation.tolerance import Expected

Role = Literal["original", "changed", "hidden", "repeated"]


class Draw(msgspec.Struct, kw_only=True):
    """One call: its inputs and parameters, and what they must give."""

    inputs: Any
    """[args, kwargs]"""
    init: list[Any]
    """[args, kwargs] of the constructor of this call's module."""
    variant: int
    """0: judged sizes. Calls with the same number share one module; another number is another construction."""
    required: list[str]
    """Parameters and buffers that ModelNew must have."""
    state: dict[str, torch.Tensor]
    """Parameters and buffers by name."""
    plain: dict[str, torch.Tensor]
    """Tensors that the module holds as ordinary attributes."""
    training: bool
    grad: bool
    same_places: bool
    """These inputs go into the memory of the latest earlier call of the same variant; else into new memory."""
    repeats: int | None = None
    """The earlier call whose values, parameters and modes these are."""
    role: Role
    kind: str
    """Distribution of the inputs."""
    work_ratio: float = 1.0
    """Compulsory bytes of these sizes in units of the judged sizes'."""
    expected: Expected


class Drawn(msgspec.Struct, kw_only=True):
    """All calls of one candidate, in order."""

    draws: list[Draw]
    init: list[Any]
    """Of variant 0."""
    required: list[str]
    """Of variant 0."""


class Plan(msgspec.Struct, kw_only=True):
    """One call before its values are drawn."""

    role: Role
    training: bool = True
    grad: bool = False
    same_places: bool = False
    kinds: tuple[str, ...] = ("plain",)
    """In the order in which they are tried; the first that keeps the reference finite is used."""
    repeats: int | None = None


SIGNED = (("wide", "wide_positive"), ("mixed", "wide_positive"))
OTHERS = (("narrow", "narrow_positive"), ("scaled",), ("plain",), ("sparse",))


def plan(rng: random.Random, count: int, modes: list[bool], hidden: bool) -> list[Plan]:
    """Roles in a random order. Two calls are original and changed; a hidden one comes third, a repeated one fourth,
    further ones are drawn."""
    roles: list[Role] = ["original", "changed"]
    if count > 2:
        roles.append("hidden" if hidden else "changed")
    if count > 3:
        roles.append("repeated")
    further: list[Role] = ["changed", "hidden"] if hidden else ["changed"]
    roles += rng.choices(further, k=max(0, count - 4))
    rng.shuffle(roles)
    first = min(roles.index("original"), roles.index("changed"))
    # Ordinary mistakes are told at the sizes that the policy knows, and a repeated call needs one to repeat.
    roles[0], roles[first] = roles[first], roles[0]
    pairs = list(itertools.product(modes, (False, True)))
    rng.shuffle(pairs)
    lead = pairs[0]
    # The second call differs from the first in both modes where it can.
    pairs.sort(key=lambda pair: (pair != lead, sum(map(operator.eq, pair, lead))))
    kinds = [*SIGNED]
    rng.shuffle(kinds)
    found: list[Plan] = []
    turn = 0
    for index, role in enumerate(roles):
        if role == "repeated":
            earlier = [at for at in range(index) if found[at].role in ("original", "changed")]
            source = rng.choice(earlier)
            found.append(msgspec.structs.replace(found[source], role="repeated", repeats=source, same_places=False))
            continue
        chosen = {"original": ("plain",), "changed": kinds[0], "hidden": rng.choice(OTHERS)}[role]
        if role == "changed" and sum(part.role == "changed" for part in found):
            chosen = rng.choice(OTHERS)
        training, grad = pairs[turn % len(pairs)]
        turn += 1
        again = role != "hidden" and any(part.role != "hidden" for part in found)
        found.append(Plan(role=role, training=training, grad=grad, same_places=again, kinds=chosen))
    return found


def perturbed(base: dict[str, torch.Tensor], parameters: set[str], generator: torch.Generator) -> dict[str, Any]:
    """Parameters with noise of about a tenth of their size (a tenth where they are all equal), running statistics too;
    other buffers as they are."""
    state = {}
    for name, value in base.items():
        value = value.clone()
        if name in parameters and value.is_floating_point() and value.numel():
            size = float(value.float().std()) if value.numel() > 1 else 0.0
            noise = torch.randn(value.shape, generator=generator) * (0.1 * size if size > 1e-6 else 0.1)
            value = (value.float() + noise).to(value.dtype)
        elif name.endswith("running_mean"):
            value = value + 0.1 * torch.randn(value.shape, generator=generator)
        elif name.endswith("running_var"):
            value = value * (0.5 + torch.rand(value.shape, generator=generator))
        state[name] = value
    return state


def _other_number(item: Any, generator: torch.Generator) -> Any:
    """A fractional number moves by up to a quarter; whole ones may be sizes, dimensions or exponents and stay."""
    if type(item) is not float or item == int(item):
        return item
    return item * (0.75 + 0.5 * float(torch.rand((), generator=generator)))


def _unevenly(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor | float:
    """Factors that make about a quarter of the rows and of the columns (of the first two dimensions) thirty to three
    hundred times smaller, one at least: what is added to a variance, or left out there, shows in small rows only."""
    factors: torch.Tensor | float = 1.0
    for dim, size in enumerate(x.shape[:2] if x.dim() > 1 else ()):
        if size < 2:
            continue
        small = torch.rand(size, generator=generator) < 0.25
        small[int(torch.randint(size, (), generator=generator))] = True
        sizes = torch.where(small, 0.003 + 0.027 * torch.rand(size, generator=generator), 1.0)
        factors = factors * sizes.view([-1 if at == dim else 1 for at in range(x.dim())])
    return factors


def _with_peaks(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """With the few largest and smallest values at five to nine at least: what is clamped, or overflows, shows there,
    and among the few hundred values of a small size there may be none by chance."""
    flat = x.flatten()
    count = max(1, flat.numel() // 512)
    for sign in (1.0, -1.0):
        at = (sign * flat).topk(count).indices
        flat[at] = sign * torch.maximum(sign * flat[at], 5.0 + 4.0 * torch.rand(count, generator=generator))
    return flat.view(x.shape)


def transformed(inputs: Any, kind: str, generator: torch.Generator) -> Any:
    """Other values in the same shapes and memory layout, all tensors in new memory where they changed."""
    if kind == "plain":
        return inputs

    def change(x: torch.Tensor) -> torch.Tensor:
        if not x.is_floating_point() or x.numel() < 2:
            return x
        if not bool(torch.isfinite(x).all()) or (x.numel() > 8 and torch.unique(x).numel() <= 4):
            return x
        if trees.overlaps(x) or torch.equal(x, x.round()):
            return x
        old = x.float()
        scale, shift = torch.rand(2, generator=generator).tolist()
        noise = torch.randn(x.shape, generator=generator)
        if kind.startswith("wide"):
            new = (noise * (1.5 + 1.5 * scale) + (shift - 0.5)) * _unevenly(x, generator)
            new = _with_peaks(new, generator)
        elif kind.startswith("narrow"):
            new = noise * (0.05 + 0.2 * scale) + (shift - 0.5)
        elif kind == "mixed":
            new = noise * torch.exp(torch.randn(x.shape, generator=generator)) * _unevenly(x, generator)
        elif kind == "sparse":
            new = noise * (torch.rand(x.shape, generator=generator) < 0.5)
        else:
            new = old * (0.5 + scale)
        low, high = float(old.min()), float(old.max())
        if kind.endswith("positive"):
            new = new.abs()
            if low >= 0 and high <= 1:
                new = new / (1 + new)
        if float((old == 0).float().mean()) > 0.05:
            new = torch.where(old == 0, 0.0, new)
        if x.dim() == 2 and x.shape[0] == x.shape[1] and torch.equal(x, x.T):
            new = (new + new.T) / 2
        return trees.with_strides(new, x)

    return trees.mapped(inputs, change, lambda item: _other_number(item, generator))
