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
    marks = _sketches(nodes, [""] * len(nodes))
    if _has_tie(nodes, marks):
        # Operands that look alike from below, such as two inputs, are told apart by what they are used for.
        marks = _sketches(nodes, _uses(nodes, roots, marks))
    return ";".join(_write(nodes, marks, roots))


def _sketches(nodes: Sequence[Node], colours: Sequence[str]) -> list[str]:
    """A mark per node: what it is computed from, inputs being told apart by their colour only."""
    marks: list[str] = []
    for (operator, operands), colour in zip(nodes, colours, strict=True):
        if operator in LEAVES:
            marks.append(operator + colour)
            continue
        parts = [marks[index] for index in operands]
        if operator in COMMUTATIVE:
            parts.sort()
        marks.append(_short(f"{operator}{colour}({','.join(parts)})"))
    return marks


def _uses(nodes: Sequence[Node], roots: Sequence[int], marks: Sequence[str]) -> list[str]:
    """A colour per node: by which operators and at which place it is used, and what those are used for."""
    uses: list[list[str]] = [[] for _ in nodes]
    for place, root in enumerate(roots):
        uses[root].append(f"root{place}")
    colours = [""] * len(nodes)
    for index in range(len(nodes) - 1, -1, -1):
        operator, operands = nodes[index]
        if not uses[index]:
            continue
        colours[index] = _short("[" + ",".join(sorted(uses[index])) + "]")
        for place, operand in enumerate(operands):
            uses[operand].append(f"{'' if operator in COMMUTATIVE else place}{marks[index]}{colours[index]}")
    return colours


def _has_tie(nodes: Sequence[Node], marks: Sequence[str]) -> bool:
    for operator, operands in nodes:
        if operator in COMMUTATIVE and len({marks[operand] for operand in operands}) < len(set(operands)):
            return True
    return False


def _short(text: str) -> str:
    # Written out, a value that is used twice doubles the text; a digest keeps large graphs small.
    return text if len(text) <= 60 else digest(text, size=8)


def _write(nodes: Sequence[Node], marks: Sequence[str], roots: Sequence[int]) -> list[str]:
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
            order = list(operands)
            if operator in COMMUTATIVE:
                # Marks still equal are of nodes that could be exchanged everywhere: keep to the first choice.
                order.sort(key=lambda operand: (marks[operand], names.get(operand, "~")))
            pieces.append(f"{operator}(")
            stack.append(")")
            for place, operand in enumerate(reversed(order)):
                stack.extend([",", operand] if place else [operand])
        texts.append("".join(pieces))
    return texts
