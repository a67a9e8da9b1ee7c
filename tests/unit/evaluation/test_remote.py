"""A host's tensors without data behave as torch's own: random programs give the same results through the link."""

from collections.abc import Callable
from typing import Any

import pytest
import random_programs
import workbench

MODEL = """
import torch
class ModelNew(torch.nn.Module):
    def forward(self, x):
        {body}
"""


@pytest.mark.parametrize("seed", range(60))
def test_a_program_computes_what_torch_computes(bench: Callable[..., Any], seed: int) -> None:
    source = random_programs.program(seed)
    assert bench(workbench.difference, source, random_programs.inputs(seed)) == "", source


def test_programs_draw_on_everything() -> None:
    text = "".join(random_programs.program(seed) for seed in range(60))
    for word in ("unfold", "add_(", "out=", "nonzero", "masked_select", ".item()", "torch.cat", "stack", "split",
                 ".to(", "arange", "as_strided", "t_()", "unique", "tolist"):  # fmt: skip
        assert word in text, word
