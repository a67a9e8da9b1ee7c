"""CUDA C++ that opens cuBLAS with dlopen and multiplies with it.

id: B13
tier: gpu
task: matmul
expect: torch_fallback, wrong_value, compile_error, runtime_error
backend: cuda
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl

from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <dlfcn.h>
__global__ void nothing_kernel(const float* x) {}
typedef int (*Create)(void**);
typedef int (*Gemm)(void*, int, int, int, int, int, const float*, const float*, int, const float*, int, const float*,
                    float*, int);
torch::Tensor multiply(torch::Tensor a, torch::Tensor b) {
    static void* library = nullptr;
    static void* handle = nullptr;
    if (!library) {
        for (const char* name : {"libcublas.so.13", "libcublas.so.12", "libcublas.so"})
            if ((library = dlopen(name, RTLD_NOW | RTLD_GLOBAL))) break;
        TORCH_CHECK(library, "no cublas");
        ((Create)dlsym(library, "cublasCreate_v2"))(&handle);
    }
    auto out = torch::empty({a.size(0), b.size(1)}, a.options());
    float one = 1.0f, zero = 0.0f;
    int m = a.size(0), k = a.size(1), n = b.size(1);
    nothing_kernel<<<1, 32>>>(a.data_ptr<float>());
    ((Gemm)dlsym(library, "cublasSgemm_v2"))(handle, 0, 0, n, m, k, &one, b.data_ptr<float>(), n, a.data_ptr<float>(),
                                             k, &zero, out.data_ptr<float>(), n);
    return out;
}
"""
extension = load_inline(
    name="product",
    cpp_sources="torch::Tensor multiply(torch::Tensor a, torch::Tensor b);",
    cuda_sources=CUDA,
    functions=["multiply"],
)


class ModelNew(nn.Module):
    def forward(self, a, b):
        return extension.multiply(a, b)
