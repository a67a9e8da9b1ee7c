"""Operator graphs and their canonical text: what is left of a program when names and numbers are taken away.

A graph is a list of nodes in evaluation order. A node is an operator's name and the indices of its operands; the
leaves are `INPUT` (an argument of `forward`), `CONST` (any number, flag or string) and `PARAM` (a weight).

    canonical([(INPUT, ()), (INPUT, ()), ("add", (0, 1)), ("relu", (2,))], [3])   ->   "relu(add(i0,i1))"

Equal texts mean: the same operators, wired alike. The order of statements, the names, the constants and the order of
operands of commutative operators make no difference; a value that is used twice is written once and then as `#k`,
k counting operators as they are written.
"""

from collections.abc import Sequence

from core.identity import digest

INPUT, CONST, PARAM = "i", "c", "w"
LEAVES = frozenset((INPUT, CONST, PARAM))
COMMUTATIVE = frozenset(("add", "mul", "maximum", "minimum", "eq", "ne", "and", "or", "xor"))

Node = tuple[str, tuple[int, ...]]


def canonical(nodes: Sequence[Node], roots: Sequence[int]) -> str:
    """Canonical text of what the roots are computed from; nodes that no root needs are left out."""
    sketches: list[str] = []
    for operator, operands in nodes:
        if operator in LEAVES:
            sketches.append(operator)
            continue
        parts = [sketches[index] for index in operands]
        if operator in COMMUTATIVE:
            parts.sort()
        sketch = f"{operator}({','.join(parts)})"
        # Written out, a value that is used twice doubles the text; a digest keeps large graphs small.
        sketches.append(sketch if len(sketch) <= 60 else digest(sketch, size=8))
    numbers: dict[int, str] = {}
    inputs = weights = written = 0

    def write(index: int) -> str:
        nonlocal inputs, weights, written
        if index in numbers:
            return numbers[index]
        operator, operands = nodes[index]
        if operator == CONST:
            return CONST
        if operator == INPUT:
            numbers[index] = f"{INPUT}{inputs}"
            inputs += 1
            return numbers[index]
        if operator == PARAM:
            numbers[index] = f"{PARAM}{weights}"
            weights += 1
            return numbers[index]
        order = sorted(operands, key=lambda operand: sketches[operand]) if operator in COMMUTATIVE else operands
        text = f"{operator}({','.join([write(operand) for operand in order])})"
        numbers[index] = f"#{written}"
        written += 1
        return text

    return ";".join([write(root) for root in roots])
