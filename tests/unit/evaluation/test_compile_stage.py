"""The compile stage on described kernels: what a GPU would refuse, for both vendors, in the compiler's own words."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from core.evaluation.compilers import compile_stage, compiler_text, ptxas, resources
from core.evaluation.compilers.compile_stage import CompileReport, CompileStage
from core.evaluation.findings import feedback_text
from core.evaluation.interpreter.kernel_describe import Describer
from core.evaluation.judge import Judge
from core.evaluation.kernel_source import Launch
from core.evaluation.settings import JudgeSettings
from core.evaluation.walls import sandbox
from tests.unit.evaluation import gpu_kernels

_SOURCE = Path(gpu_kernels.__file__).read_text()
HALF, FLOAT = torch.empty(8, dtype=torch.float16, device="meta"), torch.empty(8, device="meta")
Check = Callable[..., CompileReport]


def _stage(compiling: Judge, target: str, wall_s: float, launch_share: float = 0.5) -> CompileStage:
    """A stage of its own on the shared zygote: targets and limits belong to jobs."""
    one = CompileStage(JudgeSettings(target=target, compile_wall_s=wall_s), sandbox.probe(), 0, launch_share)
    assert compiling._compile is not None
    one.zygote = compiling._compile.zygote
    return one


@pytest.fixture(scope="module", params=["cuda:90", "hip:gfx942"])
def stage(request: pytest.FixtureRequest, compiling: Judge) -> CompileStage:
    return _stage(compiling, request.param, 60.0)


@pytest.fixture(scope="module")
def nvidia(compiling: Judge) -> CompileStage:
    return _stage(compiling, "cuda:90", 4.0)


def check(stage: CompileStage, kernel: Any, options: dict[str, Any] | None = None, **arguments: Any) -> CompileReport:
    while hasattr(kernel, "fn") and not hasattr(kernel, "raw_src"):
        kernel = kernel.fn
    describer = Describer()
    tensors = [name for name, value in arguments.items() if isinstance(value, torch.Tensor)]
    launch = describer.launch(kernel, arguments, options or {}, tensors)
    return stage.check(describer.definitions, [launch], _SOURCE)


def dot(stage: CompileStage, m: int, n: int, k: int, **options: Any) -> CompileReport:
    return check(stage, gpu_kernels.dot, options, x_ptr=HALF, y_ptr=HALF, out_ptr=FLOAT, M=m, N=n, K=k)


def test_a_kernel_with_everything_compiles(stage: CompileStage) -> None:
    report = check(stage, gpu_kernels.everything, x_ptr=FLOAT, out_ptr=FLOAT, n=64, extra=1, BLOCK=64)
    assert report.finding is None and report.compiled
    used = report.kernels[0]
    assert used.registers > 0 and used.threads == (128 if used.kernel and "cuda" in stage._settings.target else 256)


def test_kernels_of_one_name_compile_each_with_its_own_values(stage: CompileStage) -> None:
    describer = Describer()
    launches = [
        describer.launch(kernel, {"x_ptr": FLOAT}, {}, []) for kernel in (gpu_kernels.ADD_ONE, gpu_kernels.ADD_TWO)
    ]
    report = stage.check(describer.definitions, launches, _SOURCE)
    assert report.finding is None and [used.kernel for used in report.kernels] == ["kernel", "kernel"]


def test_a_function_may_be_a_constant(stage: CompileStage) -> None:
    report = check(stage, gpu_kernels.applies, x_ptr=FLOAT, FUNCTION=gpu_kernels.scaled, BLOCK=64)
    assert report.finding is None and report.compiled


@pytest.mark.parametrize(
    ("name", "message", "code"),
    [
        ("reads_python_global", "Cannot access global variable SCALE from within", "tl.store(x_ptr, SCALE)"),
        ("reads_dict", "Cannot access global variable TABLE from within", "tl.store(x_ptr, TABLE[1])"),
        ("makes_dict", "unsupported AST node type: Dict", "table = {1: 2.0}"),
        ("calls_torch", "Unsupported function referenced: torch.relu", "tl.store(x_ptr, torch.relu(x))"),
        ("calls_python", "sum", "tl.store(x_ptr, sum([x, x]))"),
    ],
)
def test_what_only_python_understands_is_refused(stage: CompileStage, name: str, message: str, code: str) -> None:
    finding = check(stage, getattr(gpu_kernels, name), x_ptr=FLOAT).finding
    assert finding is not None and finding.category == "compile_error"
    assert message in finding.headline and finding.code == code
    assert _SOURCE.splitlines()[finding.line - 1].strip() == code


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("late_compared", "LATE = n * 2 (line {line}) is known at run time only"),
        ("late_mixed", "LATE = tl.cdiv(n, 4) (line {line}) is known at run time only"),
        ("late_again", "LATE = tl.num_programs(0) (line {line}) is known at run time only"),
        ("late_called", "LATE = n (line {line}) is known at run time only"),
        ("late_shape", "a value that is known at run time only is used as a constant"),
    ],
)
def test_a_constant_of_a_run_time_value_is_told_without_tritons_insides(
    stage: CompileStage, name: str, message: str
) -> None:
    """Triton speaks of `_semantic`, or of its own classes."""
    kernel = getattr(gpu_kernels, name)
    finding = check(stage, kernel, x_ptr=FLOAT, n=64).finding
    assert finding is not None and finding.category == "compile_error"
    made = _SOURCE.splitlines().index(f"def {name}(x_ptr, n):") + 2
    assert finding.headline == message.format(line=made) and finding.code
    text = feedback_text(finding)
    assert "must be known when the kernel is compiled" in text and "_semantic" not in text and "<class" not in text


def test_an_error_in_a_called_function_names_its_line(stage: CompileStage) -> None:
    finding = check(stage, gpu_kernels.calls_bad, x_ptr=FLOAT, BLOCK=16).finding
    assert finding is not None and "must be a power of 2" in finding.headline
    assert finding.code == "return tl.reshape(x, (3, 5))"


def test_a_failed_static_assert_is_quoted(stage: CompileStage) -> None:
    finding = check(stage, gpu_kernels.asserts, x_ptr=FLOAT, BLOCK=16).finding
    assert finding is not None and finding.headline == "static_assert failed: BLOCK is too small"


def test_a_dot_with_few_columns_is_refused_where_the_gpu_refuses_it(nvidia: CompileStage) -> None:
    finding = dot(nvidia, 16, 16, 8).finding
    assert finding is not None and finding.code.startswith("tl.store(") and "K >= 16" in finding.headline


def test_shared_memory_is_refused_with_both_numbers(stage: CompileStage) -> None:
    finding = dot(stage, 256, 256, 256, num_warps=8).finding
    assert finding is not None and finding.category == "shared_memory"
    numbers = "262,144 B > 232,448 B" if "cuda" in stage._settings.target else "131,072 B > 65,536 B"
    assert f"shared memory {numbers}" in feedback_text(finding, "compact")
    assert "K = 256, M = 256, N = 256" in finding.detail


def test_compiling_too_long_names_the_block_sizes(nvidia: CompileStage) -> None:
    finding = dot(nvidia, 512, 512, 64).finding
    assert finding is not None and finding.category == "compile_timeout"
    assert "K = 64, M = 512, N = 512" in finding.detail
    assert dot(nvidia, 16, 16, 16).compiled, "the next candidate finds the stage healthy"


def test_code_that_fills_the_compilers_disk_names_the_block_sizes(
    compiling: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_stage, "TMP_MB", 1)
    stage = _stage(compiling, "cuda:90", 60.0)
    finding = dot(stage, 256, 256, 256, num_warps=8).finding
    assert finding is not None and finding.category == "compile_error"
    assert finding.headline.endswith("for cuda:90 takes more than 1 MB") and "K = 256, M = 256" in finding.detail
    monkeypatch.undo()
    assert dot(stage, 16, 16, 16).compiled, "the next candidate finds the stage healthy"


def test_one_launch_leaves_time_for_the_others(compiling: Judge) -> None:
    one = _stage(compiling, "cuda:90", 100.0, launch_share=0.02)
    describer = Describer()
    large = {"x_ptr": HALF, "y_ptr": HALF, "out_ptr": FLOAT, "M": 512, "N": 512, "K": 64}
    launches = [describer.launch(gpu_kernels.dot, {**large, "M": size, "N": size}, {}, ["x_ptr"]) for size in (16, 512)]
    finding = one.check(describer.definitions, launches, _SOURCE).finding
    assert finding is not None and finding.headline == "dot did not compile within 2 s for cuda:90"
    assert "M = 512" in finding.detail


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_warps": 3}, "num_warps = 3 in dot: wanted a power of 2"),
        ({"num_warps": 64}, "threads > 1,024 a block"),
        ({"num_ctas": 3}, "num_ctas = 3 in dot"),
        ({"num_stages": -1}, "num_stages = -1"),
    ],
)
def test_impossible_launch_options_are_refused(stage: CompileStage, options: dict[str, int], message: str) -> None:
    finding = dot(stage, 16, 16, 16, **options).finding
    assert finding is not None and finding.category == "launch_error" and message in finding.headline


def test_an_option_of_the_other_vendor_is_refused(stage: CompileStage) -> None:
    other = {"waves_per_eu": 2} if "cuda" in stage._settings.target else {"maxnreg": 64}
    finding = dot(stage, 16, 16, 16, **other).finding
    assert finding is not None and f"Keyword argument {next(iter(other))} was specified but unrecognised" in (
        finding.headline
    )


def test_spilled_registers_are_a_note(stage: CompileStage) -> None:
    report = dot(stage, 64, 256, 16, num_warps=1)
    assert report.finding is None and report.compiled
    used = report.kernels[0]
    assert used.spill_bytes > 0 or "hip" in stage._settings.target
    assert bool(report.notes) == (used.spill_bytes > 0 or used.stack_bytes > 0)


def test_arguments_that_cannot_be_described_are_skipped(stage: CompileStage) -> None:
    report = check(stage, gpu_kernels.reads_dict, x_ptr=[1])
    assert report.finding is None and not report.compiled and "(list)" in report.skipped[0]


def test_a_launch_of_an_unknown_kernel_is_tampering(stage: CompileStage) -> None:
    finding = stage.check({}, [Launch(kernel="absent", types={})], "").finding
    assert finding is not None and finding.category == "tampering"


@pytest.mark.parametrize(
    ("target", "used", "category", "text"),
    [
        ("cuda:90", {"registers": 65, "threads": 1024}, "registers", "registers 72 x 1024 threads > 65,536"),
        ("cuda:90", {"registers": 64, "threads": 1024}, "", ""),
        ("cuda:90", {"threads": 2048}, "registers", "2,048 threads a block > 1,024"),
        ("cuda:90", {"stack_bytes": 600_000}, "registers", "local memory 600,000 B a thread > 524,288 B"),
        ("cuda:90", {"shared_bytes": 524_288}, "shared_memory", "shared memory 524,288 B > 232,448 B"),
        ("cuda:100", {"tensor_memory": 1024}, "shared_memory", "tensor memory 1024 columns > 512"),
        ("hip:gfx942", {"shared_bytes": 65_537}, "shared_memory", "shared memory 65,537 B > 65,536 B"),
        ("hip:gfx942", {"registers": 256, "threads": 1024}, "registers", "vector registers 256 a lane > 128"),
        ("hip:gfx942", {"registers": 128, "threads": 1024}, "", ""),
        ("hip:gfx942", {"registers": 512, "threads": 256}, "", ""),
    ],
)
def test_limits_by_target(target: str, used: dict[str, int], category: str, text: str) -> None:
    finding = resources.exceeded(resources.KernelResources(kernel="k", **used), target)
    assert (finding.category if finding else "") == category
    assert finding is None or text in finding.headline


def test_ptxas_text_is_read() -> None:
    text = """
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z10add_kernelPKfi' for 'sm_90'
ptxas info    : Function properties for _Z10add_kernelPKfi
    40 bytes stack frame, 24 bytes spill stores, 32 bytes spill loads
ptxas info    : Used 12 registers, used 1 barriers, 1024 bytes smem, 368 bytes cmem[0]
ptxas info    : Compiling entry function 'plain' for 'sm_90'
ptxas info    : Function properties for plain
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers
"""
    first, second = ptxas.usages(text)
    assert (first.registers, first.shared_bytes, first.stack_bytes, first.spill_bytes) == (12, 1024, 40, 24)
    assert (second.entry, second.registers, second.shared_bytes) == ("plain", 8, 0)
    refusal = "ptxas error   : Entry function '_Z1kPf' uses too much shared data (0x13c80 bytes, 0xc000 max)"
    assert ptxas.too_much_shared(refusal) == ("_Z1kPf", 81024, 49152)
    assert [ptxas.plain_name(name) for name in ("_Z10add_kernelPKfi", "plain", "_ZN2ns4deepEPf", "_Z99x")] == [
        "add_kernel", "plain", "deep", "_Z99x",
    ]  # fmt: skip


def test_compilers_messages_are_cut_to_the_cause() -> None:
    output = (
        "/tmp/folder/kernel_0.py:33:4: error: operation is too large\n"
        'cuda_0_0.cu(12): error: identifier "flaot" is undefined\n'
        "      float q = flaot(3);\n                ^\n\n1 error detected in the compilation of x.cu\n"
        "/some/where/main.cpp:7:21: error: 'y' was not declared in this scope\n"
        "ptxas fatal   : Ptx assembly aborted due to errors\n"
    )
    told = compiler_text.printed_errors(output)
    assert [(message.file, message.line) for message in told] == [
        ("kernel_0.py", 33), ("cuda_0_0.cu", 12), ("main.cpp", 7), ("", 0),
    ]  # fmt: skip
    assert told[1].text == 'identifier "flaot" is undefined'
    assert compiler_text.triton_message("CompilationError", "NameError('abs is not defined')") == "abs is not defined"
    assert compiler_text.triton_message("KeyError", "x") == "KeyError: x"
    assert len(compiler_text.trim("word " * 1000)) <= compiler_text.MAX_CHARS
