"""Triton's interpreter, made to check and count: runs in the executor, on kernels that passed `kernel_check`.

Pointers are not addresses here. Every storage that a launch is handed gets a region of 2^40 bytes of its own and
kernels compute with positions in regions, so that a pointer that runs off one tensor can't land in another by luck:
each access is checked against the size of the storage that its pointer came from, then translated. The same place
counts bytes, memory sectors and operations, which the speed model reads, and remembers which program touched which
element, which shows races that the serial grid hides.

`install()` is called once, before any candidate exists; it patches Triton's language for good (the stock interpreter
patches and restores it around every launch, which costs more than a small kernel).
"""

import time
import types
from typing import Any

import numpy as np
import triton
import triton.language as tl
from triton.runtime import interpreter, jit
from triton.tools.tensor_descriptor import TensorDescriptor

from core.evaluation.interpreter.tracing import TRACER, OutOfTime, Region


def to_language(value: Any, name: str) -> Any:
    """A launch argument as the language's value: tensors become pointers into their region."""
    if hasattr(value, "data_ptr"):
        base = value.base if isinstance(value, jit.TensorWrapper) else value
        region = TRACER.region_of(base, name)
        kind = tl.str_to_ty(jit.mangle_type(value), None)
        position = region.base + base.data_ptr() - region.address
        return tl.tensor(interpreter.TensorHandle(np.array([position], dtype=np.uint64), kind), kind)
    if isinstance(value, tuple):
        parts = [to_language(part, f"{name}[{index}]") for index, part in enumerate(value)]
        return interpreter._tuple_create(value, parts)
    if isinstance(value, TensorDescriptor):
        strides = [interpreter._implicit_cvt(step) for step in value.strides]
        strides[-1] = tl.constexpr(1)
        return interpreter.interpreter_semantic.make_tensor_descriptor(
            base=to_language(value.base, name),
            shape=[interpreter._implicit_cvt(size) for size in value.shape],
            strides=strides,
            block_shape=[tl.constexpr(size) for size in value.block_shape],
            padding_option=value.padding,
        )
    return interpreter._implicit_cvt(value)


def execute(key: str, kernel: Any, arguments: dict[str, Any], sizes: list[int]) -> list[Region]:
    """One launch of a checked kernel over its whole grid; answers with the regions that it wrote to.

    `arguments` by name: constexprs as plain values, tensors as themselves. Raises what the kernel raises.
    """
    counted = TRACER.begin(key, kernel.definition.name, kernel.definition.line)
    values = {
        name: value if name in kernel.constexprs else to_language(value, name) for name, value in arguments.items()
    }
    function = kernel.fn
    builder = interpreter.interpreter_builder
    builder.set_grid_dim(*sizes)
    program = 0
    for x in range(sizes[0]):
        for y in range(sizes[1]):
            for z in range(sizes[2]):
                program += 1
                if time.monotonic() > TRACER.until:
                    raise OutOfTime
                TRACER.program = program
                builder.grid_idx = (x, y, z)
                function(**values)
    counted.programs += program
    TRACER.end(counted)
    return [region for region in TRACER.regions.values() if region.stored]


def install() -> None:
    """Patch Triton for this process; runs no torch operation."""
    assert triton.knobs.runtime.interpret, "set TRITON_INTERPRET=1 before triton is imported"
    from core.evaluation.interpreter import kernel_check
    from core.evaluation.interpreter import speed as interpreter_speed
    from core.evaluation.interpreter.ops import patch_builder

    kernel_check.warm()
    interpreter_speed.install()

    def anchor() -> None: ...

    visible = types.FunctionType(anchor.__code__, {"tl": tl, "core": tl.core, "math": tl.math}, "anchor")
    interpreter._patch_lang(visible)
    patch_builder()
    # As on a GPU without debug=True: integers wrap. The check costs a third of a small kernel's time.
    interpreter.interpreter_builder.options = interpreter.InterpreterOptions(sanitize_overflow=False)
    interpreter.InterpretedFunction.__call__ = _call
    for module in (tl.standard, tl.math, tl.random if hasattr(tl, "random") else tl):
        for value in list(vars(module).values()):
            if isinstance(value, interpreter.InterpretedFunction):
                value.rewrite()
    np.seterr(all="ignore")
    triton.runtime.jit.mangle_type(1)  # imports the rest of the language now instead of in every child


def _call(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Stands for InterpretedFunction.__call__: a function of Triton's own library called from a kernel."""
    return self.rewrite()(*args, **kwargs)
