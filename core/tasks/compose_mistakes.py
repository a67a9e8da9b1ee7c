"""Realistic mistakes, planted one at a time in a right kernel.

A mistake always has an effect: those that change what is computed are only planted where the output then differs
clearly at the sample points; the others are wrong for every program.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

from core.tasks.compose_kernels import BLOCK, KernelText, Style, kernel_text, names
from core.tasks.compose_operators import BY_NAME, CONSTANTS, COPY, OPERATORS
from core.tasks.compose_program import SAMPLE, Program, Step, differ

MISTAKES = {
    "mask_dropped": "the store has no mask, so the last program writes behind the end of the tensor",
    "mask_short": "the mask is `offs < n - 1`: the last element is never written",
    "mask_block": "the mask compares with BLOCK instead of n: only the first block is written",
    "offset_wrong": "the program id is not multiplied by the block size: the blocks overlap",
    "grid_short": "the grid is rounded down: the end of the tensor is never written",
    "grid_one": "one program is launched: only the first block is written",
    "wrong_result": "another value than the last one is stored",
    "operator_swapped": "one operator is replaced by another one",
    "operator_dropped": "one step passes its operand on unchanged",
    "operands_swapped": "the operands of a subtraction are exchanged",
    "operand_wrong": "one step reads another value than it should",
    "constant_wrong": "one constant has another value",
    "input_wrong": "one input is loaded from another input's pointer",
    "name_undefined": "the store uses a name that nobody defined",
    "prefix_missing": "a Triton function is called without `tl.`",
    "function_unknown": "an activation is called that `tl` does not have",
    "argument_missing": "the launch does not give BLOCK",
    "return_missing": "forward returns nothing",
    "syntax": "the definition of the kernel lacks its colon",
}
"""Kind of mistake and what it is."""

Choice = TypeVar("Choice")


def plant(program: Program, rng: random.Random, style: Style = "fused") -> tuple[str, str]:
    """A kernel with one mistake, and its kind; all kinds that this program can show are equally likely."""
    kinds = list(MISTAKES)
    while kinds:
        kind = kinds.pop(int(rng.random() * len(kinds)))
        wrong = plant_kind(program, rng, style, kind)
        if wrong is not None:
            return wrong, kind
    raise AssertionError(f"no mistake fits {program}")


def plant_kind(program: Program, rng: random.Random, style: Style, kind: str) -> str | None:
    """The kernel with a mistake of one kind; None when this program can't show it."""
    text = kernel_text(program, style)
    if kind in CHANGES:
        changed = [
            other for other in CHANGES[kind](program) if differ(program.output_at_sample(), other.output_at_sample())
        ]
        return kernel_text(_pick(rng, changed), style).render() if changed else None
    edited = EDITS[kind](program, text)
    return _pick(rng, edited).render() if edited else None


def _pick(rng: random.Random, choices: list[Choice]) -> Choice:
    return choices[int(rng.random() * len(choices))]


def _with_step(program: Program, at: int, step: Step) -> Program:
    return Program(program.inputs, (*program.steps[:at], step, *program.steps[at + 1 :]))


def _operator_swapped(program: Program) -> Iterator[Program]:
    for at, step in enumerate(program.steps):
        right = BY_NAME[step.operator]
        for operator in OPERATORS:
            if operator is not right and (operator.arity, operator.constant) == (right.arity, right.constant):
                yield _with_step(program, at, step._replace(operator=operator.name))


def _operator_dropped(program: Program) -> Iterator[Program]:
    for at, step in enumerate(program.steps):
        for operand in step.operands:
            yield _with_step(program, at, Step(COPY.name, (operand,)))


def _operands_swapped(program: Program) -> Iterator[Program]:
    for at, step in enumerate(program.steps):
        if step.operator == "sub":
            yield _with_step(program, at, step._replace(operands=step.operands[::-1]))


def _operand_wrong(program: Program) -> Iterator[Program]:
    for at, step in enumerate(program.steps):
        for place, right in enumerate(step.operands):
            for operand in range(program.inputs + at):
                if operand != right:
                    operands = (*step.operands[:place], operand, *step.operands[place + 1 :])
                    yield _with_step(program, at, step._replace(operands=operands))


def _constant_wrong(program: Program) -> Iterator[Program]:
    for at, step in enumerate(program.steps):
        for constant in CONSTANTS:
            if step.constant is not None and constant != step.constant:
                yield _with_step(program, at, step._replace(constant=constant))


CHANGES: dict[str, Callable[[Program], Iterator[Program]]] = {
    "operator_swapped": _operator_swapped,
    "operator_dropped": _operator_dropped,
    "operands_swapped": _operands_swapped,
    "operand_wrong": _operand_wrong,
    "constant_wrong": _constant_wrong,
}
"""Mistakes in what is computed: other programs, some of which may compute the same."""


def _wrong_result(program: Program, text: KernelText) -> list[KernelText]:
    values = program.values(SAMPLE[: program.inputs])
    known = names(program)
    return [
        replace(text, result=name)
        for name, value in zip(known[:-1], values[:-1], strict=True)
        if differ(values[-1], value)
    ]


def _input_wrong(program: Program, text: KernelText) -> list[KernelText]:
    wrong = []
    for right in range(program.inputs):
        for other in range(program.inputs):
            sample = [SAMPLE[other if number == right else number] for number in range(program.inputs)]
            if differ(program.output_at_sample(), program.values(sample)[-1]):
                loads = list(text.loads)
                loads[right] = loads[right].replace(f"{text.inputs[right]}_ptr", f"{text.inputs[other]}_ptr")
                wrong.append(replace(text, loads=tuple(loads)))
    return wrong


def _in_one_line(text: KernelText, right: str, wrong: str) -> list[KernelText]:
    """Every kernel in which the first `right` of one line of the body has become `wrong`."""
    return [
        replace(text, body=(*text.body[:at], line.replace(right, wrong, 1), *text.body[at + 1 :]))
        for at, line in enumerate(text.body)
        if right in line
    ]


EDITS: dict[str, Callable[[Program, KernelText], list[KernelText]]] = {
    "mask_dropped": lambda program, text: [replace(text, store_mask="")],
    "mask_short": lambda program, text: [replace(text, mask="offs < n - 1")],
    "mask_block": lambda program, text: [replace(text, mask="offs < BLOCK")],
    "offset_wrong": lambda program, text: [replace(text, offsets="tl.program_id(0) + tl.arange(0, BLOCK)")],
    "grid_short": lambda program, text: [replace(text, grid=f"(n // {BLOCK},)")],
    "grid_one": lambda program, text: [replace(text, grid="(1,)")],
    "wrong_result": _wrong_result,
    "input_wrong": _input_wrong,
    "name_undefined": lambda program, text: [replace(text, result="abcde"[len(program.steps)])],
    "prefix_missing": lambda program, text: [
        wrong
        for name in ("sigmoid", "maximum", "minimum", "exp")
        for wrong in _in_one_line(text, f"tl.{name}(", f"{name}(")
    ],
    "function_unknown": lambda program, text: [
        replace(
            text,
            body=(*text.body[:at], f"{line.split(' = ')[0]} = tl.{step.operator}({operand})", *text.body[at + 1 :]),
        )
        for at, line, step, operand in _activations(program, text)
    ],
    "argument_missing": lambda program, text: [replace(text, launch_block="")],
    "return_missing": lambda program, text: [replace(text, ending="return")],
    "syntax": lambda program, text: [replace(text, colon="")],
}
"""Mistakes in how it is written."""


def _activations(program: Program, text: KernelText) -> Iterator[tuple[int, str, Step, str]]:
    known = names(program)
    for result, step in zip(known[program.inputs :], program.steps, strict=True):
        if step.operator in ("relu", "tanh", "silu"):
            at = next(number for number, line in enumerate(text.body) if line.startswith(f"{result} = "))
            yield at, text.body[at], step, known[step.operands[0]]
