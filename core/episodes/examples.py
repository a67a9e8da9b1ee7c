"""The worked example inside the one-shot prompt, one per backend: a task and an answer to it.

The answers are real: a test runs the Triton one against its task in the interpreter.
"""

TASK = '''
import torch
import torch.nn as nn


class Model(nn.Module):
    """Scales every row by a learned gain and adds a shift, then keeps the positive part."""

    def __init__(self, features):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(features))
        self.shift = nn.Parameter(torch.zeros(features))

    def forward(self, x):
        return torch.relu(x * self.gain + self.shift)


ROWS = 4096
FEATURES = 1536


def get_inputs():
    return [torch.randn(ROWS, FEATURES)]


def get_init_inputs():
    return [FEATURES]
'''.strip()

TRITON = """
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def gain_shift_relu(x_ptr, gain_ptr, shift_ptr, out_ptr, features, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < features
    at = row * features + column
    x = tl.load(x_ptr + at, mask=inside)
    gain = tl.load(gain_ptr + column, mask=inside)
    shift = tl.load(shift_ptr + column, mask=inside)
    tl.store(out_ptr + at, tl.maximum(x * gain + shift, 0.0), mask=inside)


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(features))
        self.shift = nn.Parameter(torch.zeros(features))

    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        features = x.shape[-1]
        rows = x.numel() // features
        grid = (rows, triton.cdiv(features, 512))
        gain_shift_relu[grid](x, self.gain, self.shift, out, features, BLOCK=512)
        return out
""".strip()

CUDA = '''
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <torch/extension.h>

__global__ void gain_shift_relu(const float* x, const float* gain, const float* shift, float* out,
                                long total, int features) {
    long at = blockIdx.x * (long)blockDim.x + threadIdx.x;
    if (at < total) {
        int column = at % features;
        out[at] = fmaxf(x[at] * gain[column] + shift[column], 0.0f);
    }
}

torch::Tensor forward(torch::Tensor x, torch::Tensor gain, torch::Tensor shift) {
    auto out = torch::empty_like(x);
    long total = x.numel();
    gain_shift_relu<<<(total + 255) / 256, 256>>>(x.data_ptr<float>(), gain.data_ptr<float>(),
                                                  shift.data_ptr<float>(), out.data_ptr<float>(),
                                                  total, x.size(-1));
    return out;
}
"""

extension = load_inline(
    name="gain_shift_relu",
    cpp_sources="torch::Tensor forward(torch::Tensor x, torch::Tensor gain, torch::Tensor shift);",
    cuda_sources=SOURCE,
    functions=["forward"],
)


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(features))
        self.shift = nn.Parameter(torch.zeros(features))

    def forward(self, x):
        return extension.forward(x.contiguous(), self.gain, self.shift)
'''.strip()

ANSWERS = {"triton": TRITON, "cuda": CUDA}
