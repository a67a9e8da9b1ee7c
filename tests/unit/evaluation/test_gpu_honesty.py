"""The honesty check's orders through a real child in its walls; on the CPU torch's operators stand for kernels."""

import os
import shutil

import pytest
import torch

from core.evaluation.compilers import nvcc
from core.evaluation.gpu import cuda_on_gpu, cuda_tools
from core.evaluation.gpu import honesty as gpu_honesty
from core.evaluation.gpu import profile as gpu_profile
from core.evaluation.gpu.outputs import MAX_PLACES, Outputs
from core.evaluation.gpu.spawn import ChildFailed, GpuZygote
from core.evaluation.gpu.task import GpuTask
from core.evaluation.gpu.work import Profile
from core.evaluation.walls import sandbox

TASK = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=1)
def get_inputs():
    return [torch.randn(64, 512)]
def get_init_inputs():
    return []
"""
PLACES = [torch.arange(0, 64 * 512, 64 * 512 // MAX_PLACES)]
PLAIN = """
import torch
class ModelNew(torch.nn.Module):
    def forward(self, x):
        e = torch.exp(x - x.amax(1, keepdim=True))
        return e / e.sum(1, keepdim=True)
"""
EXTENSION = '''
from torch.utils.cpp_extension import load_inline
CUDA = """
__global__ void scale_kernel(const float* x, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = x[i] * FACTOR;
}
torch::Tensor scale(torch::Tensor x) {
    TORCH_CHECK(x.is_cuda(), "wants a tensor on the GPU");
    auto out = torch::empty_like(x);
    scale_kernel<<<(x.numel() + 255) / 256, 256>>>(x.data_ptr<float>(), out.data_ptr<float>(), x.numel());
    return out;
}
"""
extension = load_inline(
    name="scale", cpp_sources="torch::Tensor scale(torch::Tensor x);", cuda_sources=CUDA, functions=["scale"]
)
import torch
class ModelNew(torch.nn.Module):
    def forward(self, x):
        return extension.scale(x)
'''

WITHOUT_TORCH = '''
from torch.utils.cpp_extension import load_inline
CUDA = """
__global__ void scale_kernel(const float* x, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = x[i] * factor;
}
void scale(long x, long out, long n) { scale_kernel<<<n / 256, 256>>>((const float*)x, (float*)out, n); }
"""
load_inline(
    name="scale", cpp_sources="void scale(long x, long out, long n);", cuda_sources=CUDA, functions=["scale"],
    no_implicit_headers=True,
)
'''
"""nvcc fails at once, while g++ has torch's headers before it, for twenty seconds: nobody waits for them."""


@pytest.fixture(scope="module")
def zygote():
    found = GpuZygote(sandbox.probe(), slot=94)
    found.start()
    found.wait_ready()
    yield found
    found.stop()


@pytest.fixture(scope="module")
def task():
    made = GpuTask(TASK, "softmax", "full", "cpu", 1 << 20)
    yield made
    made.close()


def begun(zygote, tools=None):
    if zygote.running:
        zygote.end()
    zygote.begin(sandbox.Limits(memory_mb=4096, wall_s=500, tmp_mb=512, threads=512, allow_processes=True))
    zygote.ask("start", "cpu")
    zygote.ask("watch", tools)


def loaded(zygote, task, source, tools=None):
    begun(zygote, tools)
    zygote.ask("import", source)
    zygote.ask("construct", ["list", [["list", []], ["dict", {}]]])
    out = Outputs("cpu", task.reference.outputs)
    for name, arena in (("inputs", task.arena), ("out", out.arena)):
        descriptor = arena.descriptor()
        zygote.ask("memory", name, arena.nbytes, descriptors=(descriptor,))
        os.close(descriptor)
    zygote.ask("inputs", task.input_trees())
    zygote.ask("state", task.state_trees(), [])
    return out


def test_profile_lists_what_a_call_runs_and_a_ghost_run_changes_nothing_without_kernels(zygote, task) -> None:
    out = loaded(zygote, task, PLAIN)
    zygote.ask("profiler")
    found = gpu_honesty.profile(task, zygote, out, PLACES)
    assert isinstance(found, Profile)
    names = {row.name for row in found.rows}
    assert {"aten::exp", "aten::amax", "aten::sum"} <= names and "aten::softmax" not in names
    share, held_back = gpu_honesty.ghost_share(task, zygote, out, PLACES)
    assert (share, held_back) == (1.0, 0)
    finding, profile = gpu_honesty.check(task, zygote, out, found, PLAIN, "triton", PLACES)
    assert finding is not None and finding.category == "no_kernel" and profile is not None
    out.close()


def test_each_profile_is_of_values_that_are_new(zygote, task) -> None:
    remembers = PLAIN.replace("        e = ", "        if getattr(self, 'kept', None) == x.sum().item(): return x + 0\n"
                              "        self.kept = x.sum().item()\n        e = ")  # fmt: skip
    out = loaded(zygote, task, remembers)
    zygote.ask("profiler")
    found = gpu_honesty.profile(task, zygote, out, PLACES)
    assert isinstance(found, Profile) and "aten::exp" in {row.name for row in found.rows}
    same = gpu_honesty.profile(task, zygote, out, PLACES, renewed=False)
    assert isinstance(same, Profile) and "aten::exp" not in {row.name for row in same.rows}
    out.close()


def test_a_ghost_run_that_raises_says_nothing(zygote, task) -> None:
    counts = PLAIN.replace(
        "        e = ", "        self.n = getattr(self, 'n', 0) + 1\n        1 / (2 - self.n)\n        e = "
    )
    out = loaded(zygote, task, counts)
    assert gpu_honesty.ghost_share(task, zygote, out, PLACES) == (0.0, 0)
    out.close()


needs_nvcc = pytest.mark.skipif(not nvcc.find_nvcc(), reason="needs nvcc")


def told(zygote, source):
    """What the judge makes of an extension that does not compile."""
    begun(zygote, cuda_tools.find("cuda:0", "sm_90", wall_s=400.0))
    with pytest.raises(ChildFailed) as failed:
        zygote.ask("import", source)
    assert failed.value.error is not None
    found = cuda_on_gpu.finding(failed.value.error, source)
    assert found is not None, failed.value.error
    return found


@needs_nvcc
@pytest.mark.timeout(600)
def test_compilers_message_and_the_candidates_line(zygote) -> None:
    finding = told(zygote, WITHOUT_TORCH)
    assert finding is not None and finding.category == "compile_error"
    assert 'identifier "factor" is undefined' in finding.headline
    assert finding.code == "if (i < n) out[i] = x[i] * factor;"


@needs_nvcc
@pytest.mark.gpu  # not for the GPU's sake: 40 s of compilers, which `make test` does not spend
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a machine for GPU tests")
@pytest.mark.timeout(600)
def test_extension_is_built_inside_the_walls(zygote) -> None:
    begun(zygote, cuda_tools.find("cuda:0", "sm_90", wall_s=400.0))
    zygote.ask("import", EXTENSION.replace("FACTOR", "2.0f"))
    zygote.ask("construct", ["list", [["list", []], ["dict", {}]]])
    finding = told(zygote, EXTENSION.replace("FACTOR", "factor"))
    assert finding is not None and finding.code == "if (i < n) out[i] = x[i] * factor;"


REGISTERED = '''
from torch.utils.cpp_extension import load_inline
CPP = """
#include <torch/library.h>
#include <ATen/core/Tensor.h>
at::Tensor same(const at::Tensor& x) { return x.clone(); }
TORCH_LIBRARY(km_registered, m) { m.def("same(Tensor x) -> Tensor", &same); }
"""
library = load_inline("same", CPP, is_python_module=False, no_implicit_headers=True)
assert library.endswith("same.so")
import torch
class ModelNew(torch.nn.Module):
    def forward(self, x):
        x = torch.softmax(torch.ops.km_registered.same(x), 1)
        return torch.ops.km_registered.same.default(x)
'''


@pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
@pytest.mark.skipif(isinstance(cuda_tools.find("cuda:0", "sm_90"), str), reason="needs a CUDA toolkit to link with")
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_operators_that_an_extension_registers_are_called_and_watched(zygote, task) -> None:
    """They are kernels of the candidate's own: without what they write the ghost run's output is wrong."""
    out = loaded(zygote, task, REGISTERED, cuda_tools.find("cuda:0", "sm_90", wall_s=400.0))
    assert gpu_honesty.ghost_share(task, zygote, out, PLACES) == (0.0, 2)
    out.close()


def test_other_failures_are_not_the_compilers() -> None:
    assert cuda_on_gpu.finding({"type": "RuntimeError", "message": "x [line 3]"}, "") is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("size", [64, 4096, 1 << 20, 3 << 20, 40 << 20])
def test_fresh_memory_of_any_size_is_poisoned(size) -> None:
    gpu_profile.poison("cuda", [40 << 20], gpu_honesty.NAN)
    fresh = torch.empty(size // 4, device="cuda")
    assert bool(fresh.isnan().all())


def test_one_object_for_a_stage(zygote, task) -> None:
    """The whole sequence; the reference is profiled in this process."""
    out = loaded(zygote, task, PLAIN)
    honesty = gpu_honesty.Honesty("cpu")
    honesty.arrange(zygote, "triton")
    honesty.imported(zygote, 60.0)
    honesty.renew_memory(zygote, task)
    finding = honesty.after(task, zygote, out, PLAIN, "triton", PLACES, (1.0, 1.0))
    assert finding is not None and finding.category == "no_kernel" and "exp" in finding.detail
    told = honesty.lines(PLAIN, "triton").splitlines()
    assert [line.partition(":")[0] for line in told] == ["kernels", "eager"]
    assert "softmax" in told[1]
    out.close()
