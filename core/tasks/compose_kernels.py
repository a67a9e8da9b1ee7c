"""Writes a composition as a task and as Triton kernels.

The texts are short and regular, so that a small policy can learn to write them. `KernelText` holds a kernel by its
parts; every planted mistake is a change of one part.

The `cpu` size is not a multiple of BLOCK: a store without its mask leaves the tensor, a grid that is rounded down
leaves the end unwritten.
"""

from dataclasses import dataclass
from typing import Literal

from core.tasks.compose_operators import BY_NAME
from core.tasks.compose_program import Program

Style = Literal["fused", "staged"]
STYLES: tuple[Style, ...] = ("fused", "staged")

BLOCK = 256
SIZES = {"cpu": 1000, "small": 250_000, "full": 33_000_000}
"""Elements per tensor by profile."""

SOURCE = """\
import torch
import torch.nn as nn

N = {size}
PROFILES = {profiles}


class Model(nn.Module):
    def forward(self, {inputs}):
{body}
        return {output}


def get_inputs():
    return [{draws}]


def get_init_inputs():
    return []
"""

KERNEL = """\
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def kernel({parameters}, n, BLOCK: tl.constexpr){colon}
    offs = {offsets}
    mask = {mask}
{body}
    {store}


class ModelNew(nn.Module):
    def forward(self, {inputs}):
        {allocation}
        n = x.numel()
        grid = {grid}
        {launch}
        {ending}
"""


def names(program: Program) -> list[str]:
    """Names of the values: inputs x, y, z; results a, b, c, d."""
    return [*"xyz"[: program.inputs], *"abcd"[: len(program.steps)]]


def statements(program: Program, language: Literal["torch", "triton"]) -> list[str]:
    """One assignment per step."""
    known = names(program)
    lines = []
    for number, step in enumerate(program.steps, start=program.inputs):
        operator = BY_NAME[step.operator]
        template = operator.torch if language == "torch" else operator.triton
        expression = template.format(*[known[operand] for operand in step.operands], c=step.constant)
        lines.append(f"{known[number]} = {expression}")
    return lines


def model_source(program: Program) -> str:
    inputs = names(program)[: program.inputs]
    profiles = ", ".join(f'"{profile}": {{"N": {size}}}' for profile, size in SIZES.items())
    return SOURCE.format(
        size=SIZES["cpu"],
        profiles="{" + profiles + "}",
        inputs=", ".join(inputs),
        body="\n".join(f"        {line}" for line in statements(program, "torch")),
        output=names(program)[-1],
        draws=", ".join("torch.randn(N)" for _ in inputs),
    )


@dataclass(frozen=True)
class KernelText:
    """A kernel by its parts."""

    inputs: tuple[str, ...]
    loads: tuple[str, ...]
    """One per input."""
    body: tuple[str, ...]
    """The steps; a staged kernel has three more lines."""
    result: str
    """Name of the value that is stored."""
    offsets: str = "tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)"
    mask: str = "offs < n"
    store_mask: str = ", mask=mask"
    grid: str = f"(triton.cdiv(n, {BLOCK}),)"
    launch_block: str = f", BLOCK={BLOCK}"
    ending: str = "return out"
    colon: str = ":"
    staged: bool = False

    def render(self) -> str:
        pointers = [*self.inputs, *(["tmp"] if self.staged else []), "out"]
        buffers = ["tmp = torch.empty_like(x)"] if self.staged else []
        return KERNEL.format(
            parameters=", ".join(f"{pointer}_ptr" for pointer in pointers),
            colon=self.colon,
            offsets=self.offsets,
            mask=self.mask,
            body="\n".join(f"    {line}" for line in (*self.loads, *self.body)),
            store=f"tl.store(out_ptr + offs, {self.result}{self.store_mask})",
            inputs=", ".join(self.inputs),
            allocation="\n        ".join([*buffers, "out = torch.empty_like(x)"]),
            grid=self.grid,
            launch=f"kernel[grid]({', '.join(pointers)}, n{self.launch_block})",
            ending=self.ending,
        )


def kernel_text(program: Program, style: Style) -> KernelText:
    if style not in STYLES:
        raise ValueError(f"kernel style must be one of {', '.join(STYLES)}, got {style!r}")
    known = names(program)
    inputs = tuple(known[: program.inputs])
    body = statements(program, "triton")
    if style == "staged":
        at = (len(body) - 1) // 2
        value = known[program.inputs + at]
        body[at + 1 : at + 1] = [
            f"tl.store(tmp_ptr + offs, {value}, mask=mask)",
            "tl.debug_barrier()",
            f"{value} = tl.load(tmp_ptr + offs, mask=mask)",
        ]
    return KernelText(
        inputs=inputs,
        loads=tuple(f"{name} = tl.load({name}_ptr + offs, mask=mask)" for name in inputs),
        body=tuple(body),
        result=known[-1],
        staged=style == "staged",
    )


def kernel_source(program: Program, style: Style) -> str:
    return kernel_text(program, style).render()
