"""The interpreter's operations that are replaced: memory accesses are checked, arithmetic is counted.

Part of `interpreter.install`. bfloat16 values are bit patterns to the stock interpreter, so arithmetic on them gives
nonsense there: it is refused as unsupported instead. libdevice functions, which the stock interpreter lacks, are
computed by NumPy under the names of the device library.
"""

import math
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

from core.evaluation.interpreter.tracing import TRACER, IllegalKernelError, UnsupportedError

Handle = interpreter.TensorHandle
Builder = interpreter.InterpreterBuilder


def _np_dtype_table() -> dict[str, np.dtype]:
    stock = interpreter._get_np_dtype
    kinds = [getattr(tl, name) for name in vars(tl) if isinstance(getattr(tl, name), tl.dtype)]
    table = {}
    for kind in kinds:
        try:
            table[kind.name] = stock(kind)
        except KeyError:
            continue
    return table


def _np_dtype(kind: Any, _table: dict[str, np.dtype] = _np_dtype_table()) -> np.dtype:  # noqa: B008
    """The stock function builds a table of 15 types at every call."""
    if isinstance(kind, tl.block_type):
        kind = kind.element_ty
    if isinstance(kind, tl.pointer_type):
        return np.dtype(np.uint64)
    return _table[kind.name]


def _boolean(mask: Any) -> Any:
    """The stock interpreter makes an integer of a scalar condition, and of a mask that one was joined with."""
    data = mask if isinstance(mask, np.ndarray) else mask.data  # block pointers hand over a bare array
    return mask if data.dtype == np.bool_ and data is not mask else Handle(data.astype(np.bool_, copy=False), tl.int1)


def _masked_load(
    self: Any, ptrs: Any, mask: Any, other: Any, cache_modifier: Any, eviction_policy: Any, is_volatile: Any
) -> Any:
    """Parameters are named as in the stock interpreter, which passes some of them by name."""
    mask = _boolean(mask)
    element = ptrs.get_element_ty()
    dtype = _np_dtype(element)
    if is_volatile:
        TRACER.released.setdefault(TRACER.program, 0)  # waits for another program's flag
    real = TRACER.real_pointers(ptrs.data, mask.data, dtype.itemsize, store=False, load=True)
    fill = np.zeros(real.shape, dtype=dtype) if other is None else other.data
    return Handle(interpreter._interpreter.load(real, mask.data, fill, dtype), element)


def _masked_store(self: Any, ptrs: Any, value: Any, mask: Any, cache_modifier: Any, eviction_policy: Any) -> Any:
    mask = _boolean(mask)
    itemsize = _np_dtype(ptrs.get_element_ty()).itemsize
    if value.data.dtype.itemsize != itemsize or not value.data.shape == mask.data.shape == ptrs.data.shape:
        raise IllegalKernelError("a store of another type or shape than its pointers", 0)
    real = TRACER.real_pointers(ptrs.data, mask.data, itemsize, store=True, load=False, value=value.data)
    return interpreter._interpreter.store(real, value.data, mask.data)


_BF16 = "bfloat16 arithmetic in the interpreter"


def _atomic_cas(self: Any, ptr: Any, cmp: Any, val: Any, sem: Any, scope: Any) -> Any:
    everything = np.ones(ptr.data.shape, dtype=bool)
    real = TRACER.real_pointers(ptr.data, everything, _np_dtype(ptr.get_element_ty()).itemsize, store=True, load=True)
    order = self.ir_sem_to_interpreter_sem[sem]
    return Handle(interpreter._interpreter.atomic_cas(real, cmp.data, val.data, order), cmp.dtype.scalar)


def _atomic_rmw(self: Any, op: Any, ptr: Any, val: Any, mask: Any, sem: Any, scope: Any) -> Any:
    if val.dtype.scalar == tl.bfloat16:
        raise UnsupportedError("bfloat16 atomics in the interpreter")
    mask = _boolean(mask)
    real = TRACER.real_pointers(ptr.data, mask.data, _np_dtype(ptr.get_element_ty()).itemsize, store=True, load=True)
    order, kind = self.ir_sem_to_interpreter_sem[sem], self.ir_rmw_op_to_interpreter_rmw_op[op]
    return Handle(interpreter._interpreter.atomic_rmw(kind, real, val.data, mask.data, order), val.dtype.scalar)


def _is_bf16(handle: Any) -> bool:
    return handle.data.dtype == np.uint16 and handle.dtype.scalar == tl.bfloat16


def _counted(stock: Any) -> Any:
    def operation(self: Any, *operands: Any) -> Any:
        handles = [operand for operand in operands if isinstance(operand, Handle)]
        if any(map(_is_bf16, handles)):
            raise UnsupportedError(_BF16)
        result = stock(self, *operands)
        if TRACER.current is not None and result.data.dtype.kind == "f":
            TRACER.current.flops += result.data.size
        return result

    return operation


def _counted_dot(stock: Any) -> Any:
    def create_dot(self: Any, a: Any, b: Any, d: Any, *rest: Any) -> Any:
        if _is_bf16(a) or _is_bf16(b):
            raise UnsupportedError("bfloat16 tl.dot in the interpreter")
        result = stock(self, a, b, d, *rest)
        if TRACER.current is not None:
            TRACER.current.dot_flops += 2 * result.data.size * a.data.shape[-1]
        return result

    return create_dot


def _vectorised(function: Any) -> Any:
    return np.vectorize(function, otypes=[np.float64])


_LIBDEVICE = {
    "tanh": np.tanh, "sinh": np.sinh, "cosh": np.cosh, "tan": np.tan, "atan": np.arctan, "asin": np.arcsin,
    "acos": np.arccos, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh, "atan2": np.arctan2,
    "exp": np.exp, "exp2": np.exp2, "exp10": lambda x: np.power(10.0, x), "expm1": np.expm1, "log": np.log,
    "log2": np.log2, "log10": np.log10, "log1p": np.log1p, "pow": np.power, "sqrt": np.sqrt, "cbrt": np.cbrt,
    "rsqrt": lambda x: 1 / np.sqrt(x), "hypot": np.hypot, "fabs": np.abs, "floor": np.floor, "ceil": np.ceil,
    "trunc": np.trunc, "rint": np.rint, "nearbyint": np.rint, "round": lambda x: np.trunc(x + np.copysign(0.5, x)),
    "fmod": np.fmod, "fmax": np.fmax, "fmin": np.fmin, "copysign": np.copysign, "sin": np.sin, "cos": np.cos,
    "erf": _vectorised(math.erf), "erfc": _vectorised(math.erfc), "tgamma": _vectorised(math.gamma),
    "lgamma": _vectorised(math.lgamma), "isnan": np.isnan, "isinf": np.isinf, "fast_expf": np.exp, "fast_logf": np.log,
    "fast_sinf": np.sin, "fast_cosf": np.cos, "fast_tanhf": np.tanh, "fast_powf": np.power, "abs": np.abs,
    "fast_dividef": np.divide, "div_rn": np.divide, "fma": lambda a, b, c: a * b + c, "sqrt_rn": np.sqrt,
    "finitef": np.isfinite, "isfinited": np.isfinite,
}  # fmt: skip


def _extern_elementwise(self: Any, library: str, path: str, symbol: str, operands: Any, kind: Any, pure: bool) -> Any:
    base = symbol.removeprefix("__nv_").removeprefix("__ocml_").removesuffix("_f32").removesuffix("_f64")
    function = _LIBDEVICE.get(base) or _LIBDEVICE.get(base.removesuffix("f")) or _LIBDEVICE.get(base.removesuffix("d"))
    if function is None:
        raise UnsupportedError(f"libdevice function {symbol} in the interpreter")
    scalar = kind.scalar if hasattr(kind, "scalar") else kind
    result = np.asarray(function(*[operand.data for operand in operands])).astype(_np_dtype(scalar))
    if TRACER.current is not None:
        TRACER.current.flops += result.size
    return Handle(result, scalar)


def _missing(self: Any, name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    if "bf16" in name:  # of a literal beside a bfloat16 value
        raise UnsupportedError(_BF16)
    raise UnsupportedError(f"{name} in the interpreter")


def _inline_asm(self: Any, *args: Any) -> Any:
    raise UnsupportedError("inline assembly in the interpreter")


def patch_builder() -> None:
    """Replace the operations in the interpreter's builder class."""
    interpreter._get_np_dtype = _np_dtype
    Builder.create_masked_load = _masked_load
    Builder.create_masked_store = _masked_store
    Builder.create_atomic_cas = _atomic_cas
    Builder.create_atomic_rmw = _atomic_rmw
    for name in ("binary_op", "unary_op", "ternary_op", "create_fma"):
        setattr(Builder, name, _counted(getattr(Builder, name)))
    # These name the numpy function when the class is made, so the counted methods above see them.
    Builder.create_dot = _counted_dot(Builder.create_dot)
    Builder.create_extern_elementwise = _extern_elementwise
    Builder.create_inline_asm = _inline_asm
    Builder.__getattr__ = _missing
    _patch_libdevice()


def _patch_libdevice() -> None:
    """The neutral libdevice module holds empty functions that the compiler swaps; give it the CUDA ones."""
    from triton.language.extra import libdevice as neutral
    from triton.language.extra.cuda import libdevice as cuda

    def anchor() -> None: ...

    semantic = interpreter.interpreter_semantic
    for name, member in list(vars(cuda).items()):
        if not (callable(member) and tl.core.is_builtin(member)):
            continue

        def bound(*args: Any, _member: Any = member, **kwargs: Any) -> Any:
            kwargs.pop("_semantic", None)
            return _member(*args, _semantic=semantic, **kwargs)

        setattr(cuda, name, bound)
        setattr(neutral, name, bound)
