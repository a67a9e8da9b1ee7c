"""Where a published tensor's values are in a vLLM model: fused with others, and only a tensor-parallel shard of them.

A fingerprint looks at sampled places of every published tensor (`core.weights.fingerprint.probes`). This module reads
those places from the model as it computes, not from what was handed to it: from the parameter where it stands as
loaded, through the layer itself (a product with unit vectors, which is exact) where a backend keeps its weights packed.

One worker answers for the places that its shard holds; the engine joins the answers (`join`).
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from core.weights.fingerprint import PROBES, Fingerprint, probes


class Spec(NamedTuple):
    """A published tensor."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """As torch names it, e.g. `bfloat16`."""


class _Plan(NamedTuple):
    kept: list[int]
    """Which probes this worker holds."""
    read: Callable[[], Tensor]
    """Their values [len(kept)], float32."""


class Reader:
    """Reads probes from one worker's model. Plans are made once per tensor, outside of any pause."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._modules = dict(model.named_modules())
        self._parts = {
            part: (fused, index)
            for fused, parts in (getattr(model, "packed_modules_mapping", None) or {}).items()
            for index, part in enumerate(parts)
        }
        self._plans: dict[str, tuple[tuple[int, ...], _Plan]] = {}

    def prepare(self, specs: Sequence[Spec]) -> None:
        """Raises ValueError when a tensor has no place in the model, or when none fills a parameter of it."""
        filled: set[str] = set()
        for spec in specs:
            module, attribute, _ = self._find(spec.name)
            if attribute not in module._parameters:
                raise ValueError(f"{spec.name}: the engine's model has no such parameter")
            filled.add(spec.name)
            known = self._plans.get(spec.name)
            if known is None or known[0] != spec.shape:
                self._plans[spec.name] = (spec.shape, self._plan(spec))
        missing = sorted(self._wanted() - filled)
        if missing:
            raise ValueError(
                f"the weights lack {len(missing)} of the tensors that the model needs, e.g. {missing[:3]}: "
                f"they belong to another model"
            )

    def read(self, specs: Sequence[Spec]) -> tuple[list[list[int]], bytes]:
        """Per tensor the probes that this worker holds, and all their values one after the other, as float32 bytes."""
        plans = [self._plans[spec.name][1] for spec in specs]
        values = [plan.read() for plan in plans if plan.kept]
        joined = torch.cat(values).cpu().contiguous() if values else torch.empty(0)
        return [plan.kept for plan in plans], joined.numpy().tobytes()

    # ------------------------------------------------------------------------------------------------ finding

    def _find(self, name: str) -> tuple[nn.Module, str, int | None]:
        """(module, parameter's name, part of a fused module)."""
        path, _, attribute = name.rpartition(".")
        if path in self._modules:
            return self._modules[path], attribute, None
        parent, _, last = path.rpartition(".")
        if last in self._parts:
            fused, index = self._parts[last]
            module = self._modules.get(f"{parent}.{fused}")
            if module is not None:
                return module, attribute, index
        raise ValueError(f"{name}: the engine's model ({type(self._model).__name__}) has no such tensor")

    def _wanted(self) -> set[str]:
        """Published names of all the model's parameters."""
        wanted = set()
        by_fused: dict[str, list[str]] = {}
        for part, (fused, _) in self._parts.items():
            by_fused.setdefault(fused, []).append(part)
        for full, _ in self._model.named_parameters():
            path, _, attribute = full.rpartition(".")
            parent, _, last = path.rpartition(".")
            parts = by_fused.get(last)
            wanted |= {f"{parent}.{part}.{attribute}" for part in parts} if parts else {full}
        return wanted

    # ----------------------------------------------------------------------------------------------- planning

    def _plan(self, spec: Spec) -> _Plan:
        module, attribute, part = self._find(spec.name)
        places = probes(spec.name, spec.shape)
        rows, columns = _local(module, attribute, part, spec, places)
        inside = torch.ones(len(places), dtype=torch.bool)
        for at, size in (rows, columns):
            if at is not None:
                inside &= (at >= 0) & (at < size)
        kept = inside.nonzero()[:, 0].tolist()
        if not kept:
            return _Plan([], lambda: torch.empty(0))
        start = _start(module, part)
        here = places[inside].clone()
        if rows[0] is not None:
            here[:, 0] = rows[0][inside] + start
        if columns[0] is not None:
            here[:, 1] = columns[0][inside]
        return _Plan(kept, _reader(self._model, module, attribute, here, spec))


def _local(
    module: Any, attribute: str, part: int | None, spec: Spec, places: Tensor
) -> tuple[tuple[Tensor | None, int], tuple[Tensor | None, int]]:
    """Places in this worker's coordinates, with the shard's size, for the first and the second dimension; None where
    the dimension is whole. Outside of [0, size): another worker's."""
    from vllm.model_executor.layers.linear import ColumnParallelLinear, QKVParallelLinear, RowParallelLinear
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

    whole = (None, 0)
    if not spec.shape:
        return whole, whole
    first = places[:, 0]
    if isinstance(module, VocabParallelEmbedding):
        shard = module.shard_indices
        size = shard.org_vocab_end_index - shard.org_vocab_start_index
        return (first - shard.org_vocab_start_index, size), whole
    if isinstance(module, ColumnParallelLinear):
        size, rank = _part_size(module, part), module.tp_rank
        if isinstance(module, QKVParallelLinear) and part in (1, 2):
            rank //= module.num_kv_head_replicas
        return (first - rank * size, size), whole
    if isinstance(module, RowParallelLinear) and attribute == "weight":
        size = module.input_size_per_partition
        return whole, (places[:, 1] - module.tp_rank * size, size)
    return whole, whole


def _part_size(module: Any, part: int | None) -> int:
    """Rows of this worker's shard of one part of a fused module."""
    if part is None:
        return module.output_size_per_partition
    if hasattr(module, "num_kv_heads"):
        return (module.num_heads if part == 0 else module.num_kv_heads) * module.head_size
    return module.output_sizes[part] // module.tp_size


def _start(module: Any, part: int | None) -> int:
    return sum(_part_size(module, earlier) for earlier in range(part or 0))


def _reader(model: nn.Module, module: Any, attribute: str, here: Tensor, spec: Spec) -> Callable[[], Tensor]:
    """Reads `here` of the parameter, and of every packed copy that computes in its place or beside it (a head that is
    tied to the embedding has one of its own). A copy that differs makes the value NaN, and so another fingerprint."""

    def parameter() -> Tensor:
        return getattr(module, attribute)

    at = here.to(parameter().device).unbind(1)
    owners = (
        [m for m in model.modules() if m._parameters.get(attribute) is parameter()] if attribute == "weight" else []
    )
    packed = [owner for owner in owners if hasattr(owner, "cpu_linear")]
    if attribute == "weight" and parameter().numel() == 0:
        packed = [module]
    elif len(spec.shape) != parameter().dim() or any(
        int(i.max()) >= n for i, n in zip(at, parameter().shape, strict=True)
    ):
        raise ValueError(
            f"{spec.name} {list(spec.shape)} does not fit the engine's model, where it is {list(parameter().shape)}"
        )

    def read() -> Tensor:
        found = [_through(owner, *at) for owner in packed]
        if parameter().numel():
            found.append(parameter().data[at].float())
        if len(found) == 1:
            return found[0]
        alike = torch.stack([(copy == found[0]) for copy in found]).all(0)
        return torch.where(alike, found[0], torch.nan)

    return read


def _through(module: Any, rows: Tensor, columns: Tensor) -> Tensor:
    """Values of a layer's weight as its product with unit vectors has them."""
    width = getattr(module, "input_size_per_partition", None) or module.embedding_dim
    dtype = getattr(module, "params_dtype", None) or module.weight.dtype
    units = torch.zeros(len(rows), width, dtype=dtype, device=rows.device)
    which = torch.arange(len(rows), device=rows.device)
    units[which, columns] = 1
    return module.quant_method.apply(module, units, None)[which, rows].float()


def join(specs: Sequence[Spec], answers: Sequence[tuple[list[list[int]], bytes]]) -> str:
    """The fingerprint of what all workers hold together, in the published dtypes. Raises ValueError for places that no
    worker answered for, or that replicas answer differently."""
    values = [np.full(min(PROBES, int(np.prod(spec.shape, dtype=np.int64))), np.nan, np.float32) for spec in specs]
    answered = [np.zeros(len(found), bool) for found in values]
    for kept, raw in answers:
        flat = np.frombuffer(raw, np.float32)
        at = 0
        for number, places in enumerate(kept):
            got = flat[at : at + len(places)]
            at += len(places)
            again = answered[number][places]
            if not np.array_equal(values[number][places][again], got[again], equal_nan=True):
                raise ValueError(f"{specs[number].name}: the engine's workers hold different copies of it")
            values[number][places] = got
            answered[number][places] = True
    seal = Fingerprint()
    for spec, found, known in zip(specs, values, answered, strict=True):
        if not known.all():
            raise ValueError(f"{spec.name}: no worker of the engine holds {int((~known).sum())} of its sampled places")
        seal.add_values(spec.name, spec.shape, torch.from_numpy(found).to(getattr(torch, spec.dtype)))
    return seal.hexdigest()
