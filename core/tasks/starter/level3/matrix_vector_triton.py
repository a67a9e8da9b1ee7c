import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def mv_kernel(matrix_ptr, vector_ptr, bias_ptr, out_ptr, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    total = tl.zeros((ROWS,), tl.float32)
    for start in range(0, columns, COLUMNS):
        j = start + tl.arange(0, COLUMNS)
        mask = (i[:, None] < rows) & (j[None, :] < columns)
        tile = tl.load(matrix_ptr + i[:, None] * columns + j[None, :], mask=mask, other=0.0)
        vector = tl.load(vector_ptr + j, mask=j < columns, other=0.0)
        total += tl.sum(tile * vector[None, :], axis=1)
    bias = tl.load(bias_ptr + i, mask=i < rows)
    tl.store(out_ptr + i, total + bias, mask=i < rows)


class ModelNew(nn.Module):
    def __init__(self, rows):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(rows))

    def forward(self, matrix, vector):
        rows, columns = matrix.shape
        out = torch.empty((rows,), dtype=matrix.dtype, device=matrix.device)
        mv_kernel[(triton.cdiv(rows, 8),)](matrix, vector, self.bias, out, rows, columns, ROWS=8, COLUMNS=64)
        return out
