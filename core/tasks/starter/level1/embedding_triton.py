import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def embedding_kernel(ids_ptr, weight_ptr, out_ptr, width, BLOCK: tl.constexpr):
    place = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    mask = columns < width
    entry = tl.load(ids_ptr + place)
    row = tl.load(weight_ptr + entry * width + columns, mask=mask)
    tl.store(out_ptr + place * width + columns, row, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, entries, width):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(entries, width))

    def forward(self, ids):
        width = self.weight.shape[1]
        out = torch.empty((ids.numel(), width), dtype=self.weight.dtype, device=ids.device)
        embedding_kernel[(ids.numel(),)](ids, self.weight, out, width, BLOCK=triton.next_power_of_2(width))
        return out
