"""torch's switches for less exact arithmetic: the same in the trusted side, the candidate's child and the baseline's.

They belong to a process. Every process starts at torch's own defaults; a task's source may set others, which then hold
on all sides while that task is judged. A candidate that switches anything itself is found by reading them back (a word
of its own process, so it may lie) and by its numbers, which the tolerance of a strict float32 task does not let pass.
"""

from typing import Any

import torch

Flags = dict[str, str]
"""name -> value as text; `mixed` where torch refuses to say, since old and new switches contradict each other."""

_PLAIN: dict[str, tuple[Any, str, Any]] = {
    "cuda.matmul.allow_tf32": (torch.backends.cuda.matmul, "allow_tf32", False),
    "cudnn.allow_tf32": (torch.backends.cudnn, "allow_tf32", True),
    "cuda.matmul.allow_fp16_reduced_precision_reduction": (
        torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction", True,
    ),
    "cuda.matmul.allow_bf16_reduced_precision_reduction": (
        torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction", True,
    ),
}  # fmt: skip
_MATMUL = "float32_matmul_precision"
_NEW: dict[str, Any] = {"fp32_precision": torch.backends, "cuda.matmul.fp32_precision": torch.backends.cuda.matmul}
_get_matmul, _set_matmul = torch.get_float32_matmul_precision, torch.set_float32_matmul_precision


def read() -> Flags:
    """This process's switches."""
    found = {_MATMUL: _text(lambda: _get_matmul())}
    for name, (owner, attribute, _) in _PLAIN.items():
        found[name] = _text(lambda o=owner, a=attribute: getattr(o, a))
    for name, owner in _NEW.items():
        if hasattr(type(owner), "fp32_precision") or hasattr(owner, "fp32_precision"):
            found[name] = _text(lambda o=owner: o.fp32_precision)
    return found


def _text(get: Any) -> str:
    try:
        return str(get())
    except RuntimeError:
        return "mixed"


def reset() -> Flags:
    """Set torch's defaults, and read them back."""
    for owner in reversed(_NEW.values()):
        if hasattr(owner, "fp32_precision"):
            owner.fp32_precision = "none"
    _set_matmul("highest")
    for owner, attribute, value in _PLAIN.values():
        setattr(owner, attribute, value)
    return read()


def apply(flags: Flags) -> None:
    """Set what `read` said in another process of the same torch; `mixed` is left alone."""
    if read() == flags:
        return
    _set_matmul(flags[_MATMUL] if flags.get(_MATMUL, "mixed") != "mixed" else "highest")
    for name, (owner, attribute, default) in _PLAIN.items():
        if flags.get(name, "mixed") != "mixed" and isinstance(default, bool):
            setattr(owner, attribute, flags[name] == "True")
    for name, owner in _NEW.items():
        if flags.get(name, "mixed") != "mixed" and _text(lambda o=owner: o.fp32_precision) != flags[name]:
            owner.fp32_precision = flags[name]


def difference(found: Any, wanted: Flags) -> str:
    """`cuda.matmul.allow_tf32 = True instead of False`, or '' where a child's word is what it was told."""
    if not isinstance(found, dict):
        return "no flags of ours"
    for name, value in wanted.items():
        if found.get(name) != value:
            return f"torch.backends.{name} = {str(found.get(name))[:20]} instead of {value}"
    return ""
