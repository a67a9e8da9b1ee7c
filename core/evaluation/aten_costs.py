"""What one aten operator costs in the roofline's terms: bytes in and out, floating point operations, work or not.

The same rules count the reference's operators (the eager baseline) and those that a candidate still runs in torch.
Views and allocations are free, data movement costs bytes, everything else is compute.
"""

import math
from typing import Any

import torch


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


FREE = _names(
    "empty empty_like empty_strided new_empty new_empty_strided view _unsafe_view as_strided t transpose permute "
    "expand slice select squeeze unsqueeze detach alias unbind split split_with_sizes narrow unfold view_as_real "
    "view_as_complex diagonal real imag lift_fresh set_ resize_ _reshape_alias chunk numpy_T mT "
    "_local_scalar_dense item is_same_size sym_size sym_stride sym_numel size stride is_pinned _pin_memory "
    "record_stream unsafe_split is_nonzero _has_same_storage_numel expand_as view_as reshape swapaxes movedim"
)
"""Metadata and allocation."""
MOVES = _names(
    "clone copy_ copy _to_copy contiguous zeros zeros_like new_zeros ones ones_like new_ones full full_like new_full "
    "fill_ fill zero_ zero lift_fresh_copy arange scalar_tensor eye cat stack constant_pad_nd repeat flip roll "
    "slice_scatter select_scatter as_strided_copy expand_copy permute_copy transpose_copy view_copy slice_copy"
)
"""Fills and copies: bytes, but not the work that a task is about."""
_DOTS = _names(
    "mm bmm addmm baddbmm addbmm mv addmv dot vdot linear matmul _addmm_activation _int_mm _scaled_mm mkldnn_linear "
    "_grouped_mm _scaled_grouped_mm"
)
_CONVOLUTIONS = _names(
    "convolution _convolution conv1d conv2d conv3d cudnn_convolution mkldnn_convolution convolution_overrideable "
    "_slow_conv2d_forward slow_conv3d_forward slow_conv3d _conv_depthwise2d conv_depthwise3d slow_conv_dilated2d "
    "slow_conv_dilated3d _nnpack_spatial_convolution"
)
OPAQUE = _names(
    "_trilinear conv_tbc slow_conv_transpose2d slow_conv_transpose3d mkldnn_rnn_layer _transformer_encoder_layer_fwd "
    "_native_multi_head_attention _fft_r2c _fft_c2r _fft_c2c _linalg_solve_ex linalg_lstsq lstm gru rnn_tanh rnn_relu "
    "linalg_matrix_exp linalg_inv_ex _weight_int8pack_mm _weight_int4pack_mm _mixed_dtypes_linear"
)
"""Sums of products by another name: whatever a task's products are, these may be them."""


ARITHMETIC = {
    "_softmax": 5, "_log_softmax": 6, "_safe_softmax": 6, "_fused_rms_norm": 6, "native_layer_norm": 8,
    "native_group_norm": 8, "native_batch_norm": 8, "_native_batch_norm_legit": 8, "logsumexp": 5, "std": 5,
    "std_mean": 5, "var": 4, "var_mean": 4, "gelu": 8, "silu": 2, "mish": 4, "softplus": 4, "elu": 4, "selu": 4,
    "celu": 4, "hardswish": 5, "hardsigmoid": 4, "hardtanh": 2, "leaky_relu": 3, "log_sigmoid_forward": 4, "glu": 3,
    "_prelu_kernel": 3, "softshrink": 4, "hardshrink": 3, "threshold": 2, "clamp": 2, "addcmul": 3, "addcdiv": 3,
    "lerp": 3, "logaddexp": 5, "hypot": 4, "sinc": 4, "xlogy": 3, "mse_loss": 3, "smooth_l1_loss": 6, "huber_loss": 6,
    "binary_cross_entropy": 7, "linalg_vector_norm": 3, "norm": 3, "dist": 4, "renorm": 4, "_cdist_forward": 4,
    "frobenius_norm": 3, "nan_to_num": 4, "rsub": 2, "_weight_norm_interface": 5,
}  # fmt: skip
"""Operations per element, about, of operators that stand for several: as a task writes them out by hand."""


def is_dot(name: str) -> bool:
    """Whether an operator's flops run on matrix units."""
    return name in _DOTS or name in _CONVOLUTIONS or "attention" in name


def operator_name(func: Any) -> str:
    """`aten.add.Tensor` as `add`."""
    return func.overloadpacket.__name__ if hasattr(func, "overloadpacket") else str(func)


def tensors_in(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for part in value for tensor in tensors_in(part)]
    if isinstance(value, dict):
        return [tensor for part in value.values() for tensor in tensors_in(part)]
    return []


def _footprint(tensor: torch.Tensor) -> int:
    """Bytes behind a tensor: an expanded dimension is stored once."""
    stored = math.prod(size for size, step in zip(tensor.shape, tensor.stride(), strict=True) if step != 0)
    return stored * tensor.element_size()


def cost(func: Any, args: Any, kwargs: Any, out: Any) -> tuple[str, int, int, bool]:
    """(operator, bytes, flops, compute) of one call, from shapes alone: works on meta tensors too."""
    name = operator_name(func)
    if name in FREE:
        return name, 0, 0, False
    inputs, outputs = tensors_in([args, kwargs]), tensors_in(out)
    moved = sum(map(_footprint, outputs))
    if name not in ("fill_", "zero_", "copy_"):
        moved += sum(map(_footprint, inputs))
    elif name == "copy_":
        moved = sum(map(_footprint, inputs))
    if name in MOVES:
        return name, moved, 0, False
    flops = 0
    if name in _DOTS and len(inputs) >= 2:
        left = inputs[1] if name in ("addmm", "baddbmm", "addbmm", "addmv", "_addmm_activation") else inputs[0]
        flops = 2 * (outputs[0].numel() if outputs else 0) * (left.shape[-1] if left.dim() else 1)
    elif name in _CONVOLUTIONS and outputs:
        weight = inputs[1]
        transposed = name in ("convolution", "_convolution") and len(args) > 6 and bool(args[6])
        flops = 2 * (inputs[0] if transposed else outputs[0]).numel() * math.prod(weight.shape[1:])
    elif "attention" in name and outputs:
        query, key = inputs[0], inputs[1]
        flops = 4 * math.prod(query.shape) * key.shape[-2]
    else:
        flops = max([tensor.numel() for tensor in inputs + outputs], default=0) * ARITHMETIC.get(name.rstrip("_"), 1)
    return name, moved, flops, True
