"""One peer's comparisons, in the environment that `tests.parity` made: python -m parity.compare PEER OUT.json

Runs with tests/ itself on the path: a release of a peer brings a package `tests` of its own.
"""

import importlib
import importlib.metadata
import importlib.util
import json
import sys
import types
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

Loss = Callable[[Tensor], Tensor]


class Case:
    """Random padded rows [sequences, length] in float64, and the same as packed tokens for our functions."""

    def __init__(self, seed: int = 0, sequences: int = 8, length: int = 14, gaps: bool = False) -> None:
        g = torch.Generator().manual_seed(seed)
        shape = (sequences, length)
        self.lengths = torch.randint(3, length + 1, (sequences,), generator=g)
        self.mask = torch.arange(length)[None, :] < self.lengths[:, None]
        if gaps:  # tool output inside a row; the last token stays trained
            hole = torch.rand(shape, generator=g) < 0.3
            hole[torch.arange(sequences), self.lengths - 1] = False
            self.mask = self.mask & ~hole
        self.old = -2.0 * torch.rand(shape, generator=g, dtype=torch.float64) - 0.05
        self.new = self.old + 0.5 * torch.randn(shape, generator=g, dtype=torch.float64)
        self.new = self.new.clamp(max=-1e-3)
        self.behaviour = self.old + 0.5 * torch.randn(shape, generator=g, dtype=torch.float64)
        self.reference = self.new + 0.5 * torch.randn(shape, generator=g, dtype=torch.float64)
        self.returns = torch.rand(sequences, generator=g, dtype=torch.float64)
        self.group = torch.arange(sequences) // 4
        self.advantages = torch.randn(sequences, generator=g, dtype=torch.float64)
        self.values = torch.randn(shape, generator=g, dtype=torch.float64)
        self.sequence = torch.arange(sequences).repeat_interleave(length)
        self.flat_mask = self.mask.flatten()
        self.trained = self.mask.sum(1)

    def per_token(self, values: Tensor) -> Tensor:
        """[sequences] as [sequences, length]."""
        return values[:, None].expand_as(self.old).clone()

    def reduced(self, loss: Tensor, denominator: str, constant_tokens: int = 0) -> Tensor:
        """Our sum over packed tokens with the weights of a denominator."""
        from core.algorithms.denominators import sample_weights

        weights = sample_weights(self.trained, denominator, constant_tokens=constant_tokens)
        return (weights[self.sequence] * loss).sum()


class Rows:
    """Collects comparisons of one peer."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.rows: list[dict] = []

    def loss(self, what: str, ours: Loss, theirs: Loss, at: Tensor, note: str = "", **kwargs) -> None:
        """Compare value and gradient of two losses as functions of the current log-probs."""
        values, grads = [], []
        for function in (ours, theirs):
            x = at.clone().requires_grad_()
            value = function(x)
            (grad,) = torch.autograd.grad(value, x)
            values.append(value.detach())
            grads.append(grad)
        self._add(what, values[0] - values[1], grads[0] - grads[1], note, **kwargs)

    def value(self, what: str, ours: Tensor, theirs: Tensor, note: str = "", **kwargs) -> None:
        self._add(what, ours.double() - theirs.double(), None, note, **kwargs)

    def _add(
        self, what: str, value: Tensor, grad: Tensor | None, note: str, tolerance: float = 1e-9, differs: bool = False,
        gradient_only: bool = False,
    ) -> None:  # fmt: skip
        """differs: a documented difference, which must be there. gradient_only: the values are known to differ."""
        v = float(value.abs().max())
        g = None if grad is None else float(grad.abs().max())
        equal = (gradient_only or v <= tolerance) and (g is None or g <= tolerance)
        result = "differs, see below" if not equal else "gradient equal" if gradient_only else "equal"
        self.rows.append(
            {"peer": self.peer, "what": what, "value": v, "gradient": g, "tolerance": tolerance, "result": result,
             "ok": equal != differs, "note": note}
        )  # fmt: skip


def bare(*packages: str) -> None:
    """Let modules of these packages be imported without the `__init__` of the packages, which pull in whole engines."""
    for name in packages:
        parent, _, last = name.rpartition(".")
        if parent:
            folders = [str(Path(folder) / last) for folder in sys.modules[parent].__path__]
        else:
            spec = importlib.util.find_spec(name)
            if spec is None or spec.submodule_search_locations is None:
                raise ModuleNotFoundError(f"No module named {name!r}")
            folders = list(spec.submodule_search_locations)
        package = types.ModuleType(name)
        package.__path__ = folders
        sys.modules[name] = package


def main(peer: str, out: str) -> None:
    rows = Rows(peer)
    importlib.import_module(f"parity.peers.{peer}_peer").compare(rows)
    versions = {name: importlib.metadata.version(name) for name in (peer, "torch")}
    Path(out).write_text(json.dumps({"rows": rows.rows, "versions": versions}))


if __name__ == "__main__":
    main(*sys.argv[1:])
