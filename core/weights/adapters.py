"""Adapters on their way to an engine: only A and B travel, the engine adds them to the policy's own weights.

    learner   write(path, version, parts, names, dtype) ─▶ v000012.adapter ─▶ blobs on the bus ─▶ the engine's host
    engine    receive(path, base): weights of the model's folder + scale · B A, whole tensors as from any source

Both sides add with `merged`, in float64 and rounded once, so that they have the same weights bit for bit on any device,
and the fingerprint is that of the whole policy: proof as for every transport. Adding each time to the model's own
weights leaves no drift behind. Engines serve the sum: log-probs are those of the learner's policy, at full speed.

Where the learner's own base is not the folder's (4-bit), the fingerprint differs and the weights are refused.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch
from safetensors import safe_open
from torch import Tensor

from core.weights.received import Received
from core.weights.shards import iterate_tensors, save

_ROWS = 4096
_A, _B = ".lora_A", ".lora_B"


class Part(NamedTuple):
    """The adapter of one weight."""

    name: str
    """The weight's published name."""
    a: Tensor
    """[rank, in]"""
    b: Tensor
    """[out, rank]"""
    scale: float


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """What an adapter's file says beside its tensors."""

    version: int
    dtype: str
    """Of the whole policy, as torch names it."""
    names: list[str]
    """All tensors of the policy, by published name."""
    scales: dict[str, float]
    """Of each weight that has an adapter."""


def merged(weight: Tensor, part: Part, dtype: torch.dtype) -> Tensor:
    """weight + scale · B A, as `dtype`, which the weight is rounded to first: a learner may hold it so. The sums are
    float64: what their order changes is lost in the rounding, so the result is a function of the inputs alone."""
    out = torch.empty(weight.shape, dtype=dtype, device=weight.device)
    a = part.a.to(weight.device, torch.float64)
    for at in range(0, len(weight), _ROWS):  # bounds the memory that float64 takes
        rows = slice(at, at + _ROWS)
        added = part.b[rows].to(weight.device, torch.float64) @ a
        out[rows] = weight[rows].to(dtype).double().add_(added, alpha=part.scale).to(dtype)
    return out


def write(path: str | Path, version: int, parts: Sequence[Part], names: Sequence[str], dtype: torch.dtype) -> Path:
    """The adapters of a version as one file, which appears whole; names: of all tensors of the policy."""
    path = Path(path)
    layout = Layout(
        version=version, dtype=str(dtype).removeprefix("torch."), names=list(names),
        scales={part.name: part.scale for part in parts},
    )  # fmt: skip
    if unknown := sorted(set(layout.scales) - set(names)):
        raise ValueError(f"adapters for weights that the policy has not: {unknown[:3]}")
    tensors = {part.name + _A: part.a.detach().float().cpu().contiguous() for part in parts}
    tensors |= {part.name + _B: part.b.detach().float().cpu().contiguous() for part in parts}
    aside = path.with_suffix(".new")
    save(tensors, aside, {"format": "pt", "layout": msgspec.json.encode(layout).decode()})
    os.replace(aside, path)
    return path


def read(path: str | Path) -> tuple[Layout, list[Part]]:
    """Raises FileNotFoundError, and ValueError for a file that `write` did not make."""
    with safe_open(path, framework="pt") as file:
        told = (file.metadata() or {}).get("layout")
        if told is None:
            raise ValueError(f"{path} is no adapter of a policy: it has no layout")
        layout = msgspec.json.decode(told, type=Layout)
        parts = [
            Part(name, file.get_tensor(name + _A), file.get_tensor(name + _B), scale)
            for name, scale in layout.scales.items()
        ]
    return layout, parts


def receive(path: str, *, base: str | Path, device: torch.device) -> Received:
    """The whole policy on the CPU: the weights of `base` (a model's folder) with the adapters added on `device`. Raises
    FileNotFoundError, and ValueError when the base lacks a weight or has it in another shape."""
    if not Path(base).is_dir():
        raise ValueError(f"adapters are added to the weights of a model's folder, and {str(base)!r} is none here")
    layout, parts = read(path)
    by_name, dtype = {part.name: part for part in parts}, getattr(torch, layout.dtype)
    wanted, tensors = set(layout.names), []
    for name, tensor in iterate_tensors(Path(base)):
        if name not in wanted:  # a head that is tied to the embedding
            continue
        part = by_name.get(name)
        if part is None:
            tensors.append((name, tensor.to(dtype)))
            continue
        if tensor.shape != (len(part.b), part.a.shape[1]):
            raise ValueError(
                f"{path}: the adapter of {name} is for {[len(part.b), part.a.shape[1]]}, {base} has "
                f"{list(tensor.shape)}: another model"
            )
        tensors.append((name, merged(tensor.to(device), part, dtype).cpu()))
    if missing := sorted(wanted - {name for name, _ in tensors}):
        raise ValueError(f"{base} lacks {len(missing)} tensors of the policy in {path}, e.g. {missing[0]}")
    return Received(tensors)
