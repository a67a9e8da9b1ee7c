"""A task: one problem that a policy is asked to solve.

A task is PyTorch source in the KernelBench format: a class `Model`, a function `get_inputs()` and a function
`get_init_inputs()`. It may hold `PROFILES = {"cpu": {NAME: value}, "small": {...}, "full": {...}}`, which override its
module-level size constants: `cpu` fits the Triton interpreter, `full` is what is timed. A profile that is absent
means the file's own sizes.

    Task(task_id="starter/l1_relu", name="l1_relu", level=1, origin="starter", source="import torch ...")
"""

import msgspec

LEVELS = (1, 2, 3, 4)
BACKENDS = ("triton", "cuda")
PROFILES = ("cpu", "small", "full")


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One problem; plain data, so that it travels on the bus as it is."""

    task_id: str
    """Unique in a run: `origin/name`."""
    name: str
    level: int
    """1 single operators, 2 fusions, 3 blocks, 4 whole models."""
    origin: str
    """Where it comes from: `starter`, `composed`, a folder's or a data set's name."""
    source: str
    """The reference module in the KernelBench format."""
    backend: str = "triton"
    structure: str = ""
    """Canonical form of the operators it uses; tasks that share it never sit on both sides of a split."""
