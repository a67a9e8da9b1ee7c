"""The only door for a candidate's code: Triton's language passes, everything that could reach Python does not.

Kernels are built here, as the executor builds them before the first launch; none runs.
"""

from typing import Any

import pytest

from core.evaluation import kernel_source as ks
from core.evaluation.interpreter.kernel_check import CheckedKernel, Kernels, UnknownNameError
from core.evaluation.interpreter.tracing import IllegalKernelError, UnsupportedError

HEAD = "def kernel(x_ptr, n, BLOCK):"
GLOBALS = {
    "tl": ks.Module(path="triton.language"),
    "triton": ks.Module(path="triton"),
    "math": ks.Module(path="math"),
    "libdevice": ks.Module(path="triton.language.extra.libdevice"),
}


def build(body: str, **names: ks.Global) -> CheckedKernel:
    kernels = Kernels("candidate.py")
    source = HEAD + "".join(f"\n    {line}" for line in body.split("\n"))
    own = {**GLOBALS, **names}
    kernels.add("kernel", ks.KernelDefinition(name="kernel", source=source, line=7, globals=own,
                                              annotations={"BLOCK": "constexpr"}))  # fmt: skip
    return kernels.get("kernel")


PASSES = {
    "a usual body": "i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n"
    "tl.store(x_ptr + i, tl.load(x_ptr + i, mask=i < n, other=0.0) * 2, mask=i < n)",
    "chains into the language": "x = tl.math.exp(tl.load(x_ptr)) + tl.extra.libdevice.tanh(1.0) + libdevice.erf(2.0)",
    "values of tensors": "x = tl.load(x_ptr)\nx = x.to(tl.float32).sum().reshape((1,)).T\ny = x.dtype.element_ty\nz = x.shape[0]",
    "dtypes of pointers": "x = tl.zeros((BLOCK,), x_ptr.dtype.element_ty)\ny = x_ptr.type.element_ty.primitive_bitwidth",
    "loops and branches": "acc = 0.0\nfor k in range(0, n, 4):\n    acc += k\n    if k == 8 and n > 3:\n        acc = -acc\n    else:\n        pass\n"
    "while acc > 2:\n    acc -= 1\nx = acc if n > 2 else 0.0",
    "static loops": "for k in tl.static_range(4):\n    tl.static_assert(k < 4, 'small')\nfor k in tl.range(0, 4, num_stages=2):\n    pass",
    "tuples and slices": "a, b = tl.split(tl.zeros((4, 2), tl.float32))\nx = a[:, None] + b[None, :]\nm: tl.constexpr = 3\nd = (a, b)[0]",
    "comprehensions": "x = [k for k in range(4)]",
    "printing values": "tl.device_print('x', n)\nprint('x', n)\ntl.static_print(f'{BLOCK} {n}')",
    "numbers of modules": "x = math.pi * triton.cdiv(n, BLOCK) + triton.next_power_of_2(BLOCK) + triton.language.sum(n)",
    "functions of Python that Triton knows": "x = min(n, 3) + max(n, 4) + len((1, 2)) + int(n) + float(2)\ny = isinstance(n, tl.constexpr)",
    "an attribute by its name": "x = getattr(n, 'dtype')",
    "early return": "if n == 0:\n    return\ntl.store(x_ptr, 1.0)",
    "docstring": "'''What it does.'''\ntl.store(x_ptr, 1.0)",
}  # fmt: skip


@pytest.mark.parametrize("name", PASSES)
def test_tritons_language_passes(name: str) -> None:
    kernel = build(PASSES[name])
    assert kernel.arg_names == ["x_ptr", "n", "BLOCK"] and kernel.constexprs == {"BLOCK"}
    assert set(kernel.fn.__globals__["__builtins__"]) < {
        "len", "list", "range", "float", "int", "bool", "isinstance", "hasattr", "print", "min", "max", "tuple", "abs",
        "__name__",
    } | {"getattr"}  # fmt: skip


REFUSED = {
    "a tensor's data": ("tl.store(x_ptr, n.handle.data)", ".data"),
    "a tensor's handle": ("x = tl.load(x_ptr).handle", ".handle"),
    "a handle of the result of a call": ("x = tl.zeros((4,), tl.float32).handle.data.ctypes", ".ctypes"),
    "the language's own modules": ("x = tl.core", "tl.core is a module"),
    "what modules import": ("x = tl.core.builtins", "builtins"),
    "modules in modules": ("x = tl.core.importlib.import_module('os')", "importlib"),
    "private members": ("x = tl.core._unwrap_if_constexpr(n)", "_unwrap_if_constexpr"),
    "functions of modules": ("x = tl.core.wraps(n)", "wraps"),
    "dunder attributes": ("x = n.__class__", ".__class__"),
    "dunder chains": ("x = tl.sum.__globals__['os']", ".__globals__"),
    "attributes of functions": ("x = tl.sum.fn", ".fn"),
    "dunder names": ("x = __builtins__", "name __builtins__"),
    "the checker's own names": ("x = __to_tensor(n)", "name __to_tensor"),
    "assigned dunder names": ("__to_tensor = n", "name __to_tensor"),
    "dunder parameters of a loop": ("for __g0 in range(3):\n    pass", "name __g0"),
    "lambda": ("x = lambda: n", "no Lambda"),
    "nested function": ("def inner(): pass", "can't define functions"),
    "nested class": ("class Inner: pass", "no ClassDef"),
    "import": ("import os", "no Import"),
    "import from": ("from os import system", "no ImportFrom"),
    "try": ("try:\n    pass\nexcept Exception as e:\n    pass", "no Try"),
    "raise": ("raise ValueError", "no Raise"),
    "with": ("with n:\n    pass", "no With"),
    "walrus": ("x = (y := n)", "no NamedExpr"),
    "global": ("global x", "no Global"),
    "delete": ("del n", "no Delete"),
    "generator": ("x = (k for k in range(3))", "no GeneratorExp"),
    "dictionary": ("x = {1: n}", "no Dict"),
    "set": ("x = {n}", "no Set"),
    "yield": ("yield n", "no Yield"),
    "await": ("x = await n", "no Await"),
    "chained assignment": ("x = y = n", "chained assignment"),
    "format of an attribute": ("x = '{0.handle}'.format(n)", ".format"),
    "attribute in an f-string": ("x = f'{n.handle}'", ".handle"),
    "attribute store": ("n.handle = 3", ".handle"),
    "subscripts of modules": ("x = tl.__dict__['core']", "__dict__"),
    "more of an enumeration": ("x = tl.PropagateNan.__members__", ".PropagateNan|__members__"),
    "an enumeration itself": ("x = tl.PropagateNan(0)", "PropagateNan"),
    "more of math": ("x = math.sqrt(2)", "sqrt"),
    "more of triton": ("x = triton.compile(n)", "compile"),
    "runtime of triton": ("x = triton.runtime.driver", "runtime"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_everything_else_is_refused_with_its_line(name: str) -> None:
    body, words = REFUSED[name]
    with pytest.raises(IllegalKernelError, match=words) as caught:
        build("tl.store(x_ptr, 0.0)\n" + body)
    assert caught.value.line in (0, 7, 9, 10)


TWICE = {
    "defined twice": "HALF: tl.constexpr = BLOCK // 2\nHALF: tl.constexpr = BLOCK // 2",
    "a value before": "HALF = BLOCK // 2\nHALF: tl.constexpr = BLOCK // 2",
    "one of two before": "HALF, x = BLOCK // 2, 1\nHALF: tl.constexpr = BLOCK // 2",
    "a parameter": "BLOCK: tl.constexpr = BLOCK",
}


@pytest.mark.parametrize("name", TWICE)
def test_a_constexpr_has_one_value(name: str) -> None:
    with pytest.raises(IllegalKernelError, match="has a value already"):
        build(TWICE[name])


CONSTANTS = {
    "an annotated local": "HALF: tl.constexpr = BLOCK // 2",
    "under another name": "HALF: Constant = BLOCK // 2",
    "wrapped": "HALF: tl.constexpr = tl.constexpr(BLOCK // 2)",
    "made of another one": "WHOLE: tl.constexpr = BLOCK * 1\nHALF: tl.constexpr = WHOLE // 2",
    "from a constexpr function": "HALF: tl.constexpr = halved(BLOCK)",
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_compile_time_locals_stay_numbers(name: str) -> None:
    """What Triton takes as a shape; a local without the annotation is a tensor there and here."""
    kernels = Kernels("candidate.py")
    source = (
        "def kernel(BLOCK):\n" + "".join(f"    {line}\n" for line in CONSTANTS[name].split("\n")) + "    return HALF"
    )
    own = {
        **GLOBALS,
        "Constant": ks.Member(module="triton.language", name="constexpr"),
        "halved": ks.Kernel(key="halved"),
    }
    kernels.add("kernel", ks.KernelDefinition(name="kernel", source=source, line=1, globals=own))
    halved = "def halved(n):\n    size = n\n    size //= 2\n    return size"
    kernels.add("halved", ks.KernelDefinition(name="halved", source=halved, line=1, kind="constexpr_function"))
    assert kernels.get("kernel").fn(64) == 32
    assert type(kernels.get("kernel").fn(64)) is int


FOREIGN: dict[str, tuple[ks.Global, str]] = {
    "a function": (ks.Foreign(kind="function", text="host"), "host is ordinary Python"),
    "an object": (ks.Foreign(kind="object", text="dict"), "dict is ordinary Python"),
    "a class": (ks.Foreign(kind="class", text="Namespace"), "Namespace is ordinary Python"),
    "a plain global": (ks.Constant(value=3), "tl.constexpr"),
    "open": (ks.Builtin(name="open"), r"open\(\) can't be used"),
    "eval": (ks.Builtin(name="eval"), r"eval\(\) can't be used"),
    "type": (ks.Builtin(name="type"), r"type\(\) can't be used"),
    "an own module": (ks.Module(path="os"), "os is ordinary Python"),
    "triton's compiler": (ks.Module(path="triton.compiler"), "triton.compiler is ordinary Python"),
    "a module inside the language": (ks.Module(path="triton.language.semantic"), "ordinary Python"),
    "a member of triton": (ks.Member(module="triton", name="compile"), "ordinary Python"),
    "a private member": (ks.Member(module="triton.language.core", name="_constexpr_to_value"), "ordinary Python"),
    "a module as a member": (ks.Member(module="triton.language.core", name="builtins"), "ordinary Python"),
    "foreign things in a tuple": (ks.Items(values=(ks.Foreign(kind="function", text="host"),)), "ordinary Python"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_names_mean_what_the_table_says(name: str) -> None:
    what, words = FOREIGN[name]
    with pytest.raises(IllegalKernelError, match=words):
        build("tl.store(x_ptr, THING)", THING=what)


def test_what_is_printed_is_the_languages() -> None:
    with pytest.raises(IllegalKernelError, match="secret is ordinary Python"):
        build("print(THING)", THING=ks.Foreign(kind="object", text="secret"))
    with pytest.raises(NameError):  # a module has no value
        build("return tl").fn(0, 0, 0)


def test_a_module_by_another_door_is_the_same_module() -> None:
    core = ks.Member(module="triton.language", name="core")
    build("x = CORE.full((4,), 0.0, CORE.float32)", CORE=core)
    for inside in ("builtins", "importlib", "_unwrap_if_constexpr", "wraps"):
        with pytest.raises(IllegalKernelError, match=inside):
            build(f"x = CORE.{inside}", CORE=core)


def test_a_slip_is_told_apart_from_a_trespass() -> None:
    with pytest.raises(UnknownNameError, match="tl has no attribute 'maximun'") as caught:
        build("x = 0\ntl.maximun(n, 0)")
    assert caught.value.line == 9
    with pytest.raises(UnsupportedError):
        build("x = THING", THING=ks.Foreign(kind="class", text="Pair", usable=True))


def test_attributes_by_built_strings_are_checked_when_they_are_asked_for() -> None:
    getter = build("x = getattr(n, 'han' + 'dle')").fn.__globals__["getattr"]
    for name in ("handle", "__class__", "to_ir", "_x"):
        with pytest.raises(IllegalKernelError, match=f"can't use .{name}"):
            getter(object(), name)
    assert getter(object(), "dtype", "none") == "none"


def test_a_local_name_hides_a_global_one() -> None:
    kernel = build("math = n\ntl.store(x_ptr, math.value)", math=ks.Foreign(kind="function", text="host"))
    assert "math" not in kernel.fn.__globals__


@pytest.mark.parametrize("head", ["def kernel(x, y=print(1 / 0)):", "def kernel(x, *, y=lambda: 0):",
                                  "def kernel(x: (1 / 0), y):", "def kernel(x, y) -> 1 / 0:"])  # fmt: skip
def test_heads_run_nothing(head: str) -> None:
    kernels = Kernels("candidate.py")
    kernels.add("kernel", ks.KernelDefinition(name="kernel", source=f"{head}\n    return x", line=1))
    kernel = kernels.get("kernel")
    assert kernel.fn.__defaults__ in ((), None)


def test_kernels_that_call_each_other_end() -> None:
    kernels = Kernels("candidate.py")
    for name, other in (("one", "two"), ("two", "one")):
        kernels.add(name, ks.KernelDefinition(name=name, source=f"def {name}(x):\n    {other}(x)", line=1,
                                              globals={other: ks.Kernel(key=other)}))  # fmt: skip
    with pytest.raises(IllegalKernelError, match="calls itself"):
        kernels.get("one")
    with pytest.raises(ValueError, match="described twice"):
        kernels.add("one", kernels.definitions["two"])
    with pytest.raises(ValueError, match="was not described"):
        kernels.get("three")


def test_defaults_are_values_of_the_description() -> None:
    kernels = Kernels("candidate.py")
    defaults: dict[str, Any] = {"BLOCK": ks.Constant(value=64), "dtype": ks.Dtype(name="fp32")}
    source = "def kernel(x, BLOCK=1 / 0, *, dtype=None):\n    return BLOCK"
    kernels.add("kernel", ks.KernelDefinition(name="kernel", source=source, line=1, defaults=defaults))
    function = kernels.get("kernel").fn
    assert function.__defaults__ == (64,) and function(0) == 64
    assert str(function.__kwdefaults__["dtype"]) == "fp32"
