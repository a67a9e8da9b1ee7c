"""Fingerprints: proof that a generator holds the weights that the learner published.

A fingerprint covers every tensor: its name, shape, dtype, and values at sampled places (`probes`), which are a pure
function of name and shape. An engine that stores tensors in another layout (fused projections, a tensor-parallel shard)
fetches the same values from wherever they ended up, and so proves that loading put them there.

A version is live at a generator only after the generator answered with the fingerprint that the learner expects.
"""

import hashlib
import math
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

PROBES = 64
"""Values looked at in each tensor."""


def probes(name: str, shape: tuple[int, ...]) -> "Tensor":
    """Where to look in a tensor: int64 [k, dims] coordinates, k ≤ PROBES, spread over the whole tensor with the first
    and the last element among them."""
    import torch

    count = math.prod(shape)
    if count <= PROBES:
        flat = torch.arange(count)
    else:
        seed = int.from_bytes(hashlib.blake2b(f"{name} {shape}".encode(), digest_size=7).digest(), "little")
        edges = [i * count // PROBES for i in range(PROBES + 1)]
        # One place in each of PROBES equal stretches, moved about by the seed so that it is no column or row.
        flat = torch.tensor([a + (seed * (i + 1)) % (b - a) for i, (a, b) in enumerate(pairwise(edges))])
        flat[0], flat[-1] = 0, count - 1
    return torch.stack(torch.unravel_index(flat, shape), dim=1) if shape else torch.zeros((1, 0), dtype=torch.int64)


class Fingerprint:
    """Takes tensors one by one, in any order, so that no more than one needs to be gathered at a time."""

    def __init__(self) -> None:
        self._tensors: dict[str, str] = {}

    def add(self, name: str, tensor: "Tensor") -> None:
        """Account for a whole tensor of any dtype on any device."""
        places = probes(name, tuple(tensor.shape)).to(tensor.device)
        self.add_values(name, tuple(tensor.shape), tensor[tuple(places.unbind(1))].reshape(-1))

    def add_values(self, name: str, shape: tuple[int, ...], values: "Tensor") -> None:
        """Account for a tensor by its values [k] at `probes(name, shape)`, in the dtype that it was published in."""
        import torch

        if name in self._tensors:
            raise ValueError(f"tensor {name!r} was added twice")
        raw = values.detach().contiguous().cpu().view(torch.uint8).numpy().tobytes()
        dtype = str(values.dtype).removeprefix("torch.")
        self._tensors[name] = hashlib.blake2b(
            f"{name} {list(shape)} {dtype} ".encode() + raw, digest_size=16
        ).hexdigest()

    @property
    def count(self) -> int:
        """How many tensors were added."""
        return len(self._tensors)

    def hexdigest(self) -> str:
        """The fingerprint, 32 hexadecimal digits; a function of the set of tensors, not of their order."""
        joined = "".join(self._tensors[name] for name in sorted(self._tensors))
        return hashlib.blake2b(joined.encode(), digest_size=16).hexdigest()


def fingerprint(
    tensors: "Iterable[tuple[str, Tensor]]", *, rename: Callable[[str], str | None] = lambda name: name,
    dtype: "torch.dtype | None" = None,
) -> str:  # fmt: skip
    """Fingerprint of named tensors, e.g. `model.named_parameters()`.

    rename: gives a tensor's published name, or None to leave it out (a head that is tied to the embedding).
    dtype: cast floating tensors to this first; for an engine that computes in another type than it was sent.
    """
    state = Fingerprint()
    for name, tensor in tensors:
        published = rename(name)
        if published is not None:
            state.add(published, tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor)
    return state.hexdigest()
