"""Rows of KernelBook: PyTorch modules of public repositories, `python_code` with the class `entry_point`.

Its licence changed under the same name: revisions up to `MIT_REVISION` are MIT, later ones are not permissive. So rows
are read only under that pinned revision. The class is renamed to `Model`; the level follows from the number of
operators, since rows have none.
"""

import ast
import io
import tokenize
from collections.abc import Mapping
from typing import Any

from core import parsing
from core.shown import shown
from core.tasks.format import TaskError
from core.tasks.structure import structure_of

MIT_REVISION = "1576375bc92745b490e1cdf2fce01eba76d9f847"
MOST_OPERATORS = (1, 8)
"""Of level 1 and of level 2; more is level 3."""


def is_row(row: Mapping[str, Any]) -> bool:
    return "python_code" in row and "entry_point" in row


def fields(row: Mapping[str, Any], where: str, revision: str) -> dict[str, Any]:
    """Name, level and source of a row.

    Raises:
        TaskError: another revision than the MIT one, or no module of that name.
    """
    if revision != MIT_REVISION:
        raise TaskError(
            f"{where}: a row of KernelBook, which is under the MIT licence only up to revision {MIT_REVISION}; got "
            f"revision {revision!r}, so set that one and use the data of that revision"
        )
    entry, source = row["entry_point"], row["python_code"]
    if not isinstance(entry, str) or not entry.isidentifier() or not isinstance(source, str):
        raise TaskError(f"{where}: entry_point must be the name of a class in python_code, got {shown(entry, 60)}")
    found = _classes(source)
    if found is not None and entry not in found:
        row_id = f" (uuid {row['uuid']})" if row.get("uuid") is not None else ""
        raise TaskError(
            f"{where}{row_id}: entry_point names the class {entry}, but the classes in python_code are "
            f"{', '.join(found) or 'none'}"
        )
    source = renamed(source, {"Model": "OtherModel", entry: "Model"} if entry != "Model" else {}, where)
    operators = structure_of(source, where).count("(")
    level = 1 + sum(operators > most for most in MOST_OPERATORS)
    return {"name": f"{row.get('uuid', '')}_{entry}".removeprefix("_"), "level": level, "source": source}


def _classes(source: str) -> list[str] | None:
    """Names of the module's own classes, in order; None for what is not Python."""
    try:
        nodes = parsing.parse(source).body
    except (SyntaxError, ValueError):
        return None
    return list(dict.fromkeys(node.name for node in nodes if isinstance(node, ast.ClassDef)))


def renamed(source: str, names: Mapping[str, str], where: str) -> str:
    """The source with other names in place of some, wherever they stand as a name of their own (not in texts)."""
    lines = source.splitlines(keepends=True)
    try:
        found = list(tokenize.generate_tokens(io.StringIO(source).readline))
    except (tokenize.TokenError, SyntaxError) as error:
        raise TaskError(f"{where}: the source is not Python: {error}") from None
    for token in reversed(found):
        if token.type == tokenize.NAME and token.string in names:
            row, start = token.start
            line = lines[row - 1]
            lines[row - 1] = line[:start] + names[token.string] + line[token.end[1] :]
    return "".join(lines)
