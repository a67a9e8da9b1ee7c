"""Kernels described as plain data and made again."""

import ast
from pathlib import Path

import msgspec
import pytest
import torch
import triton.language as tl

from core.evaluation import kernel_source as source
from core.evaluation.interpreter.kernel_describe import Describer, describe
from core.evaluation.kernel_load import load_kernels
from tests.unit.evaluation import gpu_kernels

_LINES = Path(gpu_kernels.__file__).read_text().splitlines()


def travelled(definitions: dict[str, source.KernelDefinition]) -> dict[str, source.KernelDefinition]:
    """As the other process reads them."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(definitions), type=dict[str, source.KernelDefinition])


def test_everything_a_kernel_names_is_described() -> None:
    key, definitions = describe(gpu_kernels.everything.fn)
    kernel, helper = definitions[key], definitions["scaled"]
    assert _LINES[kernel.line - 1].startswith("def everything(")
    assert kernel.source.startswith("def everything(")
    assert kernel.globals["tl"] == kernel.globals["L"] == source.Module(path="triton.language")
    assert kernel.globals["fetch"] == source.Member(module="triton.language", name="load")
    assert kernel.globals["libdevice"] == source.Module(path="triton.language.extra.libdevice")
    assert kernel.globals["erf"] == source.Member(module="triton.language.extra.libdevice", name="erf")
    assert kernel.globals["scaled"] == source.Kernel(key="scaled")
    assert kernel.globals["THREE"] == source.Constant(value=3, constexpr=True)
    assert kernel.globals["OUT"] == source.Dtype(name="fp32", constexpr=True)
    assert kernel.globals["triton"] == source.Module(path="triton")
    numpy = kernel.globals["np"]
    assert isinstance(numpy, source.Foreign) and list(numpy.constants) == ["pi"]
    assert kernel.annotations == {"n": "i32", "BLOCK": "constexpr"}
    assert kernel.defaults == {"BLOCK": source.Constant(value=64)}
    assert kernel.jit_options == {"do_not_specialize": ("n",)}
    assert helper.annotations == {"power": "constexpr"}
    assert helper.defaults == {"factor": source.Constant(value=2.0), "power": source.Constant(value=4)}
    assert travelled(definitions) == definitions


def test_kernels_of_classes_and_functions_keep_their_own_values(tmp_path: Path) -> None:
    describer = Describer()
    one, two = describer.key(gpu_kernels.ADD_ONE), describer.key(gpu_kernels.ADD_TWO)
    describer.key(gpu_kernels.Holder.kernel)
    assert len(describer.definitions) == 5 and one != two
    assert describer.key(gpu_kernels.ADD_ONE) == one
    kernels = load_kernels(travelled(describer.definitions), str(tmp_path))
    steps = [kernels[key].fn.__globals__["helper"].fn.__globals__["step"].value for key in (one, two)]
    assert steps == [1.0, 2.0]


@pytest.mark.parametrize("name", ["scaled", "dot", "softmax", "bad_reshape", "asserts", "applies"])
def test_every_line_keeps_its_number(name: str) -> None:
    key, definitions = describe(getattr(gpu_kernels, name))
    definition = definitions[key]
    text = source.module_text(definition).splitlines()
    body = ast.parse("\n".join(text)).body[0]
    assert isinstance(body, ast.FunctionDef)
    assert not body.args.defaults and not any(argument.annotation for argument in body.args.args)
    for statement in body.body:
        assert text[statement.lineno - 1] == _LINES[statement.lineno - 1]


def test_making_a_kernel_runs_nothing_of_it(tmp_path: Path) -> None:
    text = "def kernel(x=print(1 / 0), y: (1 / 0) = 3) -> 1 / 0:\n    return x"
    definition = source.KernelDefinition(
        name="kernel", source=text, line=5, defaults={"x": source.Constant(value=1), "y": source.Constant(value=2)}
    )
    kernel = load_kernels({"kernel": definition}, str(tmp_path))["kernel"]
    assert kernel.fn.__defaults__ == (1, 2)
    assert "__import__" not in kernel.fn.__globals__["__builtins__"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source": "import os"}, "not one function"),
        ({"source": "def kernel(x):\n    pass\nprint(1)"}, "not one function"),
        ({"source": "@decorate\ndef kernel(x):\n    pass"}, "not one function"),
        ({"source": "def other(x):\n    pass"}, "not one function"),
        ({"source": "def kernel(x:\n"}, "does not parse"),
        ({"globals": {"os": source.Module(path="os")}}, "can't use module os"),
        ({"globals": {"run": source.Member(module="os", name="system")}}, "can't use module os"),
        ({"globals": {"run": source.Member(module="triton", name="compile")}}, "can't use triton.compile"),
        ({"globals": {"run": source.Member(module="triton.language.core", name="wraps")}}, "can't use triton.language"),
        ({"globals": {"f": source.Kernel(key="absent")}}, "no definition of kernel absent"),
        ({"globals": {"d": source.Dtype(name="fp7")}}, "no dtype fp7"),
        ({"defaults": {"z": source.Constant(value=1)}}, "don't fit its parameters"),
    ],
)
def test_definitions_of_something_else_are_refused(changes: dict, message: str, tmp_path: Path) -> None:
    plain = source.KernelDefinition(name="kernel", source="def kernel(x):\n    return x", line=1)
    with pytest.raises(source.KernelSourceError, match=message):
        load_kernels({"kernel": msgspec.structs.replace(plain, **changes)}, str(tmp_path))


def test_launches_say_what_a_gpu_would_compile() -> None:
    describer = Describer()
    x = torch.empty(8, dtype=torch.float16, device="meta")
    arguments = {"x_ptr": x, "out_ptr": x, "n": 1, "extra": 1, "BLOCK": 64}
    launch = describer.launch(gpu_kernels.everything.fn, arguments, {"num_warps": 8, "hook": print}, ["x_ptr"])
    assert launch.types == {"x_ptr": "*fp16", "out_ptr": "*fp16", "n": "i32"}
    assert launch.constants == {"extra": source.Constant(value=1), "BLOCK": source.Constant(value=64)}
    assert launch.aligned == ("x_ptr",)
    assert launch.options == {"num_warps": 8}
    applied = describer.launch(gpu_kernels.applies, {"x_ptr": x, "FUNCTION": gpu_kernels.scaled, "BLOCK": 8}, {}, [])
    assert applied.constants["FUNCTION"] == source.Kernel(key="scaled")
    odd = describer.launch(gpu_kernels.applies, {"x_ptr": [1], "FUNCTION": tl.float16, "BLOCK": 8}, {}, [])
    assert odd.types == {"x_ptr": "?list"} and odd.constants["FUNCTION"] == source.Dtype(name="fp16")


def test_large_numbers_and_odd_strings_do_not_travel() -> None:
    describer = Describer()
    values = {"a": 2**70, "b": "\ud800", "c": "x" * 10_000, "d": float("nan"), "e": torch.float32}
    kinds = {name: type(describer._value(value)).__name__ for name, value in values.items()}
    assert kinds == {"a": "Foreign", "b": "Foreign", "c": "Foreign", "d": "Constant", "e": "Foreign"}
