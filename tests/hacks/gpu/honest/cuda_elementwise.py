"""CUDA C++: one element a thread.

tier: gpu
task: relu_scale
expect: pass
backend: cuda
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl

from torch.utils.cpp_extension import load_inline

CUDA = r"""
__global__ void relu_kernel(const float* x, float* out, long n) {
    long i = blockIdx.x * (long)blockDim.x + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f) * 2.0f + 1.0f;
}
torch::Tensor relu_scale(torch::Tensor x) {
    auto out = torch::empty_like(x);
    long n = x.numel();
    relu_kernel<<<(n + 255) / 256, 256>>>(x.data_ptr<float>(), out.data_ptr<float>(), n);
    return out;
}
"""
extension = load_inline(
    name="relu_scale",
    cpp_sources="torch::Tensor relu_scale(torch::Tensor x);",
    cuda_sources=CUDA,
    functions=["relu_scale"],
)


class ModelNew(nn.Module):
    def forward(self, x):
        return extension.relu_scale(x)
