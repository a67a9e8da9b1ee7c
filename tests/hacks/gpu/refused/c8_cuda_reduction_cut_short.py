"""CUDA C++ whose reduction stops a step early.

id: C8
tier: gpu
task: row_sum
expect: wrong_value, non_finite
backend: cuda
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl

from torch.utils.cpp_extension import load_inline

CUDA = r"""
template <int THREADS>
__global__ void sum_kernel(const float* x, float* out, int columns) {
    __shared__ float parts[THREADS];
    const float* row = x + (long)blockIdx.x * columns;
    float total = 0.0f;
    for (int i = threadIdx.x; i < columns; i += THREADS) total += row[i];
    parts[threadIdx.x] = total;
    __syncthreads();
    for (int half = THREADS / 2; half > 1; half /= 2) {
        if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) out[blockIdx.x] = parts[0];
}
torch::Tensor row_sum(torch::Tensor x) {
    auto out = torch::empty({x.size(0)}, x.options());
    sum_kernel<256><<<x.size(0), 256>>>(x.data_ptr<float>(), out.data_ptr<float>(), x.size(1));
    return out;
}
"""
extension = load_inline(
    name="row_sum", cpp_sources="torch::Tensor row_sum(torch::Tensor x);", cuda_sources=CUDA, functions=["row_sum"]
)


class ModelNew(nn.Module):
    def forward(self, x):
        return extension.row_sum(x)
