"""KernelMill's own problems: `level{1,2,3}/<name>.py`, each with a right Triton kernel in `<name>_triton.py` beside it.

Written for this project. Level 1 is single operators and broadcasts, level 2 reductions, softmax, norms and small
fusions, level 3 matrix products with epilogues, attention pieces and scans. The kernels run in the Triton interpreter
at the `cpu` sizes and cross-compile for GPUs; they are right, not fast: examples and test material, not baselines.
"""

from pathlib import Path

STARTER = Path(__file__).parent


def starter_kernel(name: str) -> str:
    """The kernel beside a starter task; `name` as in `Task.name`, e.g. `l1_relu`."""
    level, _, stem = name.partition("_")
    return (STARTER / f"level{level.removeprefix('l')}" / f"{stem}_triton.py").read_text(encoding="utf-8")
