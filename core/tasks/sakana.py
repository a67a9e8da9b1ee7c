"""Rows of Sakana's AI CUDA Engineer archive: many kernels per task, so equal tasks come many times and count once.

Nothing that a row claims (Correct, speedups) is believed. Fields may be null; profiles are written as Python reprs, not
as JSON.
"""

import ast
from collections.abc import Mapping
from typing import Any

from core.shown import shown
from core.tasks.format import TaskError


def is_row(row: Mapping[str, Any]) -> bool:
    return "PyTorch_Code_Module" in row


def fields(row: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Name, level and source of a row.

    Raises:
        TaskError: the row has no module.
    """
    source, level = row["PyTorch_Code_Module"], row.get("Level_ID")
    if not source:
        raise TaskError(f"{where}: PyTorch_Code_Module is empty")
    parts = [f"l{level}", str(row.get("Task_ID") or ""), str(row.get("Op_Name") or "")]
    return {"name": "_".join(part for part in parts if part), "level": level, "source": source}


def profile(text: str | None, where: str) -> dict[str, Any] | None:
    """What `NCU_Profile`, `Torch_Profile` or `Clang_Tidy` holds; None for a null or an empty text.

    Raises:
        TaskError: not the repr of a dict.
    """
    if not text or text == "None":
        return None
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise TaskError(f"{where}: a profile must be the repr of a dict, got {shown(text, 60)}")
    return found
