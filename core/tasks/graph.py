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
    return ";".join(_write(nodes, sketches, roots))


def _write(nodes: Sequence[Node], sketches: Sequence[str], roots: Sequence[int]) -> list[str]:
    names: dict[int, str] = {}
    counts = {INPUT: 0, PARAM: 0, "#": 0}
    texts = []
    for root in roots:
        pieces: list[str] = []
        # A stack and not recursion: whole models are thousands of operators deep.
        stack: list[int | str] = [root]
        while stack:
            item = stack.pop()
            if isinstance(item, str):
                pieces.append(item)
                continue
            operator, operands = nodes[item]
            if operator == CONST or item in names:
                pieces.append(names.get(item, CONST))
                continue
            kind = operator if operator in LEAVES else "#"
            names[item] = f"{kind}{counts[kind]}"
            counts[kind] += 1
            if operator in LEAVES:
                pieces.append(names[item])
                continue
            order = sorted(operands, key=lambda operand: sketches[operand]) if operator in COMMUTATIVE else operands
            pieces.append(f"{operator}(")
            stack.append(")")
            for place, operand in enumerate(reversed(order)):
                stack.extend([",", operand] if place else [operand])
        texts.append("".join(pieces))
    return texts
