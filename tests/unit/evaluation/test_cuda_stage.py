"""CUDA C++ candidates without a GPU: recorded where they are imported, compiled by nvcc, never run."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from core.evaluation import cuda_source
from core.evaluation.compilers import cuda_capture, cuda_child
from core.evaluation.compilers.cuda_stage import CudaStage
from core.evaluation.compilers.nvcc import find_toolchain
from core.evaluation.cuda_source import Extension
from core.evaluation.findings import feedback_text
from core.evaluation.judge import Judge
from core.evaluation.settings import JudgeSettings
from core.evaluation.spawn import Zygote
from core.evaluation.walls import sandbox

needs_nvcc = pytest.mark.skipif(isinstance(find_toolchain(), str), reason=f"{find_toolchain()}")
SOURCE = '''
import torch
from torch.utils.cpp_extension import load_inline

cuda = r"""
#include <cuda_runtime.h>
__global__ void double_kernel(const float* x, float* out, int n) {
    __shared__ float tile[256];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    tile[threadIdx.x] = i < n ? x[i] : 0.f;
    __syncthreads();
    DEVICE
    if (i < n) out[i] = 2.f * tile[threadIdx.x];
}
void launch(long x, long out, long n) {
    HOST
    double_kernel<<<(n + 255) / 256, 256>>>((const float*)x, (float*)out, n);
}
"""
cpp = "void launch(long x, long out, long n);"
extension = load_inline(
    name="double", cpp_sources=cpp, cuda_sources=cuda, functions=FUNCTIONS, no_implicit_headers=True,
    extra_cuda_cflags=["-O3", "--use_fast_math", "-I/etc", "--compiler-bindir=/bin/sh", "-maxrregcount", "64"],
)

class ModelNew(torch.nn.Module):
    def forward(self, x):
        extension.launch(x.data_ptr(), x.data_ptr(), x.numel())
        return x
'''  # fmt: skip


def candidate(device: str = "", host: str = "", functions: str = '["launch"]') -> str:
    return SOURCE.replace("DEVICE", device).replace("HOST", host).replace("FUNCTIONS", functions)


def capture(source: str) -> tuple[list[Extension], dict[str, Any]]:
    """What the candidate's import records, and its namespace."""
    import torch.utils

    frames: list[dict[str, Any]] = []
    before = sys.modules.get("torch.utils.cpp_extension")
    cuda_capture.install(frames.append)
    namespace: dict[str, Any] = {}
    try:
        exec(compile(source, "candidate.py", "exec"), namespace)
    finally:
        if before is None:
            del sys.modules["torch.utils.cpp_extension"], torch.utils.cpp_extension  # type: ignore[attr-defined]
        else:
            sys.modules["torch.utils.cpp_extension"] = torch.utils.cpp_extension = before  # type: ignore[attr-defined]
    return msgspec.convert([frame["extension"] for frame in frames], list[Extension]), namespace


@pytest.fixture(scope="module")
def stage(compiling: Judge) -> CudaStage:
    assert compiling._compile is not None
    return CudaStage(JudgeSettings(target="cuda:90", compile_wall_s=300.0), compiling._compile.zygote)


def judge(stage: CudaStage, source: str) -> Any:
    extensions, _ = capture(source)
    return stage.check(extensions, source)


def test_load_inline_is_recorded_and_its_functions_need_a_gpu() -> None:
    extensions, namespace = capture(candidate())
    assert [extension.name for extension in extensions] == ["double"]
    assert extensions[0].functions == ("launch",) and "double_kernel" in extensions[0].cuda_sources[0]
    assert cuda_source.allowed_flags(extensions[0].cuda_flags) == ["-O3", "--use_fast_math", "-maxrregcount=64"]
    assert isinstance(namespace["extension"], ModuleType)
    with pytest.raises(cuda_capture.NeedsGpuError, match="needs a GPU to run"):
        namespace["extension"].launch(1, 2, 3)
    with pytest.raises(AttributeError):
        namespace["extension"].lunch(1, 2, 3)


OPERATOR = """
#include <torch/library.h>
// TORCH_LIBRARY(commented_out, m) { m.def("nothing() -> ()"); }
at::Tensor doubled(const at::Tensor& x) { return x + x; }
TORCH_LIBRARY(NAMESPACE, m) {
    m.def("doubled(Tensor x) -> Tensor");
    m . def(R"(doubled.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!))");
    m.def("quietly", &doubled);
}
TORCH_LIBRARY_IMPL(NAMESPACE, CPU, m) { m.impl("doubled", &doubled); }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("bound", &doubled); }
"""


def test_operators_that_an_extension_registers_are_told_from_the_text() -> None:
    def of(text: str) -> list[tuple[str, str]]:
        return cuda_source.operators(Extension(name="own", cpp_sources=(text,)))

    assert of(OPERATOR) == [("NAMESPACE", "doubled"), ("NAMESPACE", "quietly")]
    assert of('TORCH_LIBRARY_FRAGMENT(TORCH_EXTENSION_NAME, lib) {lib.def("own::f(Tensor x) -> Tensor");}') == [
        ("own", "f")
    ]
    assert of('STABLE_TORCH_LIBRARY(a, m) { m.def("f() -> ()"); other.def("g() -> ()"); }') == [("a", "f")]
    assert of('PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("f", &f); }') == of("TORCH_LIBRARY(a") == []


@pytest.mark.parametrize("form", ["load_inline", "load"])
def test_operators_of_an_extension_that_is_no_module_need_a_gpu(form: str, tmp_path: Path) -> None:
    """What stands in torch.ops of this process stays there: each form has a namespace of its own."""
    namespace = f"km_recorded_{form}"
    text = OPERATOR.replace("NAMESPACE", namespace)
    path = tmp_path / "k.cu"
    path.write_text(text)
    given = {"load_inline": f"'k', '', cuda_sources={text!r}", "load": f"'k', [{str(path)!r}]"}[form]
    source = f"from torch.utils.cpp_extension import {form}\nlibrary = {form}({given}, is_python_module=False)"
    extensions, names = capture(source)
    assert not extensions[0].python_module and names["library"] == "k.so"
    space = getattr(torch.ops, namespace)
    for call in (space.doubled, space.doubled.default, space.quietly):
        with pytest.raises(cuda_capture.NeedsGpuError, match=rf"torch.ops.{namespace}.\w+ needs a GPU to run"):
            call(torch.zeros(3))
    with pytest.raises(AttributeError):
        _ = space.tripled
    assert isinstance(names["library"], str)
    with pytest.raises(AttributeError, match=r"'str' object has no attribute 'doubled': with is_python_module=False"):
        names["library"].doubled(torch.zeros(3))  # type: ignore[attr-defined]
    add = torch.ops.aten.add
    capture(source.replace(namespace, "aten").replace("doubled", "add"))
    assert torch.ops.aten.add is add


def test_load_reads_the_files_that_the_candidate_wrote(tmp_path: Any) -> None:
    path = tmp_path / "k.cu"
    source = f"""
from torch.utils.cpp_extension import load
open({str(path)!r}, "w").write("__global__ void k() {{}}")
load(name="k", sources=[{str(path)!r}])
"""
    extensions, _ = capture(source)
    assert extensions[0].cuda_sources == ("__global__ void k() {}",)


def test_too_much_source_is_refused_where_it_is_recorded() -> None:
    with pytest.raises(RuntimeError, match="bytes of source, more than"):
        capture('from torch.utils.cpp_extension import load_inline\nload_inline("x", "", cuda_sources="/" * 10**6)')


def test_without_a_cuda_target_or_source_there_is_nothing_to_compile() -> None:
    zygote = Zygote("compile", sandbox.probe(), 96)
    amd = CudaStage(JudgeSettings(target="hip:gfx942"), zygote).check([], "")
    assert amd.finding is not None and amd.finding.kind == "unsupported" and not amd.compiled
    nothing = CudaStage(JudgeSettings(target="cuda:90"), zygote).check([], "").finding
    assert nothing is not None and (nothing.kind, nothing.category) == ("fail", "no_kernel")


@pytest.mark.parametrize(
    ("source", "uses"),
    [
        ("from torch.utils.cpp_extension import load_inline", True),
        ("import torch.utils.cpp_extension as e", True),
        ("import torch\ntorch.utils.cpp_extension.load()", True),
        ("from torch.utils import cpp_extension", True),
        ("import torch  # cpp_extension\nx = 'cpp_extension'", False),
    ],
)
def test_candidates_that_build_extensions_are_known_by_their_text(source: str, uses: bool) -> None:
    assert cuda_source.uses_extensions(source) is uses


@pytest.mark.parametrize(
    ("source", "cuda"),
    [
        ("from torch.utils.cpp_extension import load_inline\nmodule = load_inline('a', '')", True),
        ("import cupy\nkernel = cupy.RawKernel(r'__global__ void k() {}', 'k')", True),
        ("import triton\n@triton.jit\ndef k(): pass  # __global__", False),
        ("from triton import jit\n@jit\ndef k(): '__global__'", False),
        ("x = 1  # __global__", False),
        ("__global__ void k() {}", False),
    ],
)
def test_cuda_without_any_triton_is_known_by_its_text(source: str, cuda: bool) -> None:
    assert cuda_source.is_cuda(source) is cuda


@pytest.mark.parametrize(
    ("cpp", "cuda", "functions", "message"),
    [
        ("void f();", "void f() {}", ("g",), "g is in `functions`, but cpp_sources does not declare it"),
        ("void f();", "void g() {}", ("f",), "f is declared in cpp_sources, but cuda_sources does not define it"),
        ("void f(); // g", "void f() {}", ("g",), "g is in `functions`"),
        ("void f();", "void f() {}", ("f",), ""),
        ("void f() {}", "__global__ void k() {}", ("f",), ""),
        ("#define F void f();\nF", "void f() {}", ("f",), ""),
    ],
)
def test_what_can_never_link_is_told_from_the_text(cpp: str, cuda: str, functions: Any, message: str) -> None:
    reason = cuda_source.unlinkable(Extension(name="e", cpp_sources=(cpp,), cuda_sources=(cuda,), functions=functions))
    assert (message in reason) if message else reason == ""


@needs_nvcc
def test_what_compiles_is_unsupported_and_compiled(stage: CudaStage) -> None:
    report = judge(stage, candidate())
    assert report.compiled and report.finding.kind == "unsupported"
    assert "compiles for sm_90; needs a GPU to run" in report.finding.headline
    used = report.kernels[0]
    assert used.kernel == "double_kernel" and used.shared_bytes == 1024 and used.registers > 0


@needs_nvcc
@pytest.mark.parametrize(
    ("where", "code", "message"),
    [
        ("device", "float q = flaot(3);", 'identifier "flaot" is undefined'),
        ("device", "float q = 3", 'expected a ";"'),
        ("host", "undeclared(3);", 'identifier "undeclared" is undefined'),
        ("device", 'asm("nonsense.f32 %r1;");', "ptxas: "),
        ("host", '#include "/etc/passwd"', "No such file or directory"),
    ],
)
def test_nvccs_message_comes_with_the_candidates_line(stage: CudaStage, where: str, code: str, message: str) -> None:
    source = candidate(**{where: code})
    report = judge(stage, source)
    assert report.finding.category == "compile_error" and not report.compiled
    assert message in report.finding.headline
    if "ptxas" not in message:
        near = source[: source.index(code)].count("\n") + 1
        assert report.finding.line in (near, near + 1)


@needs_nvcc
def test_static_shared_memory_is_refused_with_both_numbers(stage: CudaStage) -> None:
    report = judge(stage, candidate(device="__shared__ float t[20000]; t[i] = x[i]; __syncthreads(); out[0] = t[n];"))
    assert report.finding.category == "shared_memory"
    assert "shared memory 81,024 B > 49,152 B" in feedback_text(report.finding, "compact")
    assert "double_kernel" in report.finding.code


@needs_nvcc
def test_local_memory_of_a_thread_is_a_note(stage: CudaStage) -> None:
    report = judge(stage, candidate(device="float many[1000]; for (int j = 0; j < n; j++) many[j % 1000] = j + x[j];"
                                           " out[i] = many[n % 1000] + many[i % 1000];"))  # fmt: skip
    assert report.compiled and "local memory" in report.notes[0]


@needs_nvcc
def test_source_without_a_kernel_has_none(stage: CudaStage) -> None:
    source = """
from torch.utils.cpp_extension import load_inline
load_inline("x", "void f();", cuda_sources="void f() {}", functions=["f"], no_implicit_headers=True)
"""
    assert judge(stage, source).finding.category == "no_kernel"


OWN_HEADERS = {
    "ATen/core/Tensor.h": """#pragma once
namespace at {
enum ScalarType { kByte, kChar, kShort, kInt, kLong, kHalf, kFloat, kDouble };
constexpr int in_few = 1;
}""",
    "ATen/Dispatch.h": "",
    "c10/util/Exception.h": "",
    "torch/types.h": "#include <ATen/core/Tensor.h>\nnamespace torch { using namespace at; constexpr int in_all = 1; }",
}
"""Headers with the names of torch's, which cost a second instead of thirty."""


@needs_nvcc
@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("torch::in_few", [("few", True, True)]),
        ("torch::in_all", [("few", False, False), ("all", True, True)]),
        ("torch::in_none", [("few", False, False), ("all", False, True)]),
        ("in_no_header", [("few", False, True)]),
        ("1; // py::object", [("all", True, True)]),
    ],
)
def test_all_headers_are_tried_where_few_may_be_the_reason(
    tmp_path: Path, code: str, wanted: list[tuple[str, bool, bool]]
) -> None:
    tools = find_toolchain()
    assert not isinstance(tools, str)
    include, work = tmp_path / "include", tmp_path / "work"
    work.mkdir()
    for name, text in OWN_HEADERS.items():
        (include / name).parent.mkdir(parents=True, exist_ok=True)
        (include / name).write_text(text)
    command = [tools.nvcc, "-cubin", "-arch=sm_90", "-std=c++20", "-ccbin", tools.cxx, "-o", "out.cubin"]
    text = f"#include <torch/types.h>\n__global__ void k(int* out) {{ *out = {code}\n; }}"
    folders = [str(include)]
    job = {"cuda": [{"file": "k.cu", "text": text, "command": command}], "includes": folders, "headers": folders}
    sent: list[dict[str, Any]] = []
    cuda_child.run(job, SimpleNamespace(send=sent.append), str(work))  # type: ignore[arg-type]
    answers = [(frame["headers"], frame["code"] == 0, frame["final"]) for frame in sent if "code" in frame]
    assert answers == wanted, sent


WITH_TORCH = """
from torch.utils.cpp_extension import load_inline
cuda = '''
__global__ void k(const float* x, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = x[i];
}
torch::Tensor copy(torch::Tensor x) {
    TORCH_CHECK(x.scalar_type() == torch::kFloat32, "float32 only");
    auto out = torch::empty_like(x);
    k<<<1, 256>>>(x.data_ptr<float>(), out.data_ptr<float>(), x.numel());
    return out.contiguous();
}
'''
load_inline("x", "torch::Tensor copy(torch::Tensor x);", cuda_sources=cuda, functions=["copy"])
"""
REGISTERED = """
from torch.utils.cpp_extension import load_inline
cuda = '''
#include <torch/library.h>
__global__ void k(float* out) { out[threadIdx.x] = 1.f; }
torch::Tensor ones(const torch::Tensor& x) {
    auto out = torch::empty_like(x);
    k<<<1, 256>>>(out.data_ptr<float>());
    return out;
}
TORCH_LIBRARY(km_compiled, m) { m.def("ones(Tensor x) -> Tensor", &ones); }
'''
load_inline("x", "", cuda_sources=cuda, is_python_module=False)
"""


@needs_nvcc
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("source", [WITH_TORCH, REGISTERED], ids=["module", "operator"])
def test_a_tensor_of_torch_compiles_with_few_headers(stage: CudaStage, source: str) -> None:
    assert judge(stage, source).compiled


@needs_nvcc
@pytest.mark.gpu  # not for the GPU's sake: 40 s of compilers, which `make test` does not spend
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a machine for GPU tests")
@pytest.mark.timeout(600)
def test_a_wrong_name_of_torch_is_told_after_all_headers(stage: CudaStage) -> None:
    wrong = judge(stage, WITH_TORCH.replace("torch::empty_like", "torch::empty_likee"))
    assert 'namespace "torch" has no member "empty_likee"' in wrong.finding.headline
    assert "empty_likee" in wrong.finding.code
