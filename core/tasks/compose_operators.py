"""The operators that compositions are made of: how each is written in PyTorch, in Triton, and what it computes.

All of them run in the Triton interpreter (no libdevice: tanh is written through the sigmoid) and none overflows
float32 on ordinary inputs (exp only sees -|x|).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from core.tasks.graph import CONST, Node

CONSTANTS = (0.1, 0.25, 0.5, 1.5, 2.0, 3.0)


@dataclass(frozen=True)
class Operator:
    """`{0}`, `{1}` in the templates are operands, `{c}` is the constant, where `constant` says that there is one."""

    name: str
    arity: int
    torch: str
    triton: str
    compute: Callable[..., float]
    """Of `arity` numbers, then the constant."""
    structure: tuple[Any, ...]
    """Nested (name, part, ...): an int is an operand, `CONST` a constant; as the AST of `torch` reads."""
    constant: bool = False

    def add_to(self, nodes: list[Node], operands: Sequence[int]) -> int:
        """Append this operator's nodes to a graph; the index of its result."""

        def add(part: Any) -> int:
            if isinstance(part, int):
                return operands[part]
            nodes.append((part, ()) if part == CONST else (part[0], tuple([add(inner) for inner in part[1:]])))
            return len(nodes) - 1

        return add(self.structure)


def _sigmoid(x: float) -> float:
    return 0.5 * math.tanh(0.5 * x) + 0.5


OPERATORS: tuple[Operator, ...] = (
    Operator("add", 2, "{0} + {1}", "{0} + {1}", lambda x, y: x + y, ("add", 0, 1)),
    Operator("sub", 2, "{0} - {1}", "{0} - {1}", lambda x, y: x - y, ("sub", 0, 1)),
    Operator("mul", 2, "{0} * {1}", "{0} * {1}", lambda x, y: x * y, ("mul", 0, 1)),
    Operator("maximum", 2, "torch.maximum({0}, {1})", "tl.maximum({0}, {1})", max, ("maximum", 0, 1)),
    Operator("minimum", 2, "torch.minimum({0}, {1})", "tl.minimum({0}, {1})", min, ("minimum", 0, 1)),
    Operator("relu", 1, "torch.relu({0})", "tl.maximum({0}, 0.0)", lambda x: max(x, 0.0), ("relu", 0)),
    Operator("sigmoid", 1, "torch.sigmoid({0})", "tl.sigmoid({0})", _sigmoid, ("sigmoid", 0)),
    Operator("tanh", 1, "torch.tanh({0})", "2.0 * tl.sigmoid(2.0 * {0}) - 1.0", math.tanh, ("tanh", 0)),
    Operator("silu", 1, "nn.functional.silu({0})", "{0} * tl.sigmoid({0})", lambda x: x * _sigmoid(x), ("silu", 0)),
    Operator(
        "decay",
        1,
        "torch.exp(-torch.abs({0}))",
        "tl.exp(-tl.abs({0}))",
        lambda x: math.exp(-abs(x)),
        ("exp", ("neg", ("abs", 0))),
    ),
    Operator("abs", 1, "torch.abs({0})", "tl.abs({0})", abs, ("abs", 0)),
    Operator("neg", 1, "-{0}", "-{0}", lambda x: -x, ("neg", 0)),
    Operator("square", 1, "torch.square({0})", "{0} * {0}", lambda x: x * x, ("square", 0)),
    Operator("shift", 1, "{0} + {c}", "{0} + {c}", lambda x, c: x + c, ("add", 0, CONST), True),
    Operator("scale", 1, "{0} * {c}", "{0} * {c}", lambda x, c: x * c, ("mul", 0, CONST), True),
    Operator(
        "clamp",
        1,
        "torch.clamp({0}, -{c}, {c})",
        "tl.minimum(tl.maximum({0}, -{c}), {c})",
        lambda x, c: max(-c, min(x, c)),
        ("clamp", 0),
        True,
    ),
)
COPY = Operator("copy", 1, "{0}", "{0}", lambda x: x, ())
"""Not drawn: what a forgotten operator leaves."""

BY_NAME = {operator.name: operator for operator in (*OPERATORS, COPY)}
