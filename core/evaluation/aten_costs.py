"""What one aten operator costs in the roofline's terms: bytes in and out, floating point operations, work or not.

The same rules count the reference's operators (the eager baseline) and those that a candidate still runs in torch.
Views and allocations are free, data movement costs bytes, everything else is compute.
"""

import functools
import math
from typing import Any

import torch


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


FREE = _names(
    "empty empty_like empty_permuted empty_strided new_empty new_empty_strided view _unsafe_view as_strided t "
    "transpose permute expand slice select squeeze unsqueeze detach alias unbind split split_with_sizes narrow unfold "
    "view_as_real view_as_complex diagonal real imag lift_fresh set_ resize_ _reshape_alias chunk numpy_T mT "
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
    "_grouped_mm _scaled_grouped_mm _scaled_mm_v2 _scaled_grouped_mm_v2"
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
    "std_mean": 5, "var": 4, "var_mean": 4, "gelu": 8, "silu": 5, "mish": 10, "softplus": 4, "elu": 4, "selu": 4,
    "celu": 4, "hardswish": 5, "hardsigmoid": 4, "hardtanh": 2, "leaky_relu": 3, "log_sigmoid_forward": 4, "glu": 5,
    "_prelu_kernel": 3, "softshrink": 4, "hardshrink": 3, "threshold": 2, "clamp": 2, "addcmul": 3, "addcdiv": 3,
    "lerp": 3, "logaddexp": 5, "hypot": 4, "sinc": 4, "xlogy": 3, "mse_loss": 3, "smooth_l1_loss": 6, "huber_loss": 6,
    "binary_cross_entropy": 7, "linalg_vector_norm": 3, "norm": 3, "dist": 4, "renorm": 4, "_cdist_forward": 4,
    "frobenius_norm": 3, "nan_to_num": 4, "rsub": 2, "_weight_norm_interface": 5, "softmax": 5, "log_softmax": 6,
    "_masked_softmax": 5, "_native_batch_norm_legit_no_training": 8, "_native_batch_norm_legit_functional": 8,
    "_batch_norm_with_update": 8, "logcumsumexp": 4, "_logcumsumexp": 4, "sigmoid": 4, "tanh": 5, "logit": 3,
    "sinh": 4, "cosh": 4, "expm1": 2, "log1p": 2, "rsqrt": 2,
}  # fmt: skip
"""Operations per element, about, of operators that stand for several: as a task writes them out by hand."""
UNKNOWN_ARITHMETIC = 8
"""Of those that are neither pointwise nor known: as many as the dearest."""


_NO_PRODUCTS = _names(
    "_adaptive_avg_pool2d _adaptive_avg_pool3d _aminmax _chunk_cat _cummax_helper _cummin_helper _index_put_impl "
    "_is_all_true _is_any_true _log_softmax _logcumsumexp _masked_scale _masked_softmax _native_batch_norm_legit "
    "_native_batch_norm_legit_functional _native_batch_norm_legit_no_training _batch_norm_with_update _prelu_kernel "
    "_safe_softmax _softmax _unique _unique2 _unsafe_index _unsafe_index_put _unsafe_masked_index "
    "_weight_norm_interface _fused_rms_norm _fused_dropout _conj _conj_physical _neg_view _stack adaptive_avg_pool1d "
    "adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool2d adaptive_max_pool3d all amax amin aminmax any argmax "
    "argmin as_strided_scatter avg_pool1d avg_pool2d avg_pool3d batch_norm bernoulli binary_cross_entropy bincount "
    "block_diag bucketize channel_shuffle col2im complex count_nonzero cummax cummin cumprod cumsum diag_embed "
    "diagonal_scatter dist embedding exponential floor_divide fractional_max_pool2d fractional_max_pool3d gather gelu "
    "glu group_norm histc histogram huber_loss im2col index index_add index_copy index_fill index_put index_reduce "
    "index_select isin kthvalue layer_norm linalg_vector_norm linspace log_sigmoid_forward log_softmax logcumsumexp "
    "logspace logsumexp masked_fill masked_scatter masked_select max max_pool2d_with_indices max_pool3d_with_indices "
    "max_unpool2d max_unpool3d mean median min mish mode mse_loss multinomial nanmedian nansum native_batch_norm "
    "native_dropout native_group_norm native_layer_norm nll_loss2d_forward nll_loss_forward nonzero nonzero_static "
    "norm normal pixel_shuffle pixel_unshuffle polar prod put rand rand_like randint randn randn_like random randperm "
    "reflection_pad1d reflection_pad2d reflection_pad3d renorm repeat_interleave replication_pad1d replication_pad2d "
    "replication_pad3d rms_norm rot90 rrelu_with_noise scatter scatter_add scatter_reduce searchsorted smooth_l1_loss "
    "softmax sort std std_mean sum take threshold topk trace tril tril_indices triu triu_indices uniform "
    "unique_consecutive unique_dim upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_nearest1d "
    "upsample_nearest2d upsample_nearest3d upsample_trilinear3d var var_mean where"
)
"""Sums, choices and moves: no operator among them, that torch does not call pointwise, multiplies two of its inputs and
sums over the result."""


def is_dot(name: str) -> bool:
    """Whether an operator's flops run on matrix units."""
    return name.rstrip("_") in _DOTS or name in _CONVOLUTIONS or "attention" in name


@functools.cache
def may_be_product(name: str) -> bool:
    """Whether an operator may do a task's products under a name that is not counted as one: distances, solvers, bags of
    embeddings with weights, gradients. What is not known to be something else may be."""
    base = name.rstrip("_").removeprefix("_foreach_")
    if base in OPAQUE or (base in _DOTS and not is_dot(name)):
        return True
    return not (is_dot(name) or _is_known(name))


def _is_known(name: str) -> bool:
    """Whether an operator is pointwise, made of others, or one of those that are listed here."""
    base = name.rstrip("_").removeprefix("_foreach_")
    if base in FREE or base in MOVES or base in _NO_PRODUCTS:
        return True
    packets = [getattr(torch.ops.aten, part, None) for part in (name, base)]
    known = [packet for packet in packets if isinstance(packet, torch._ops.OpOverloadPacket)]
    overloads = [getattr(packet, overload) for packet in known for overload in packet.overloads()]
    overloads = [overload for overload in overloads if torch._C._dispatch_has_kernel(overload.name())]
    if overloads and all(map(is_composite, overloads)):
        return True
    return any(torch.Tag.pointwise in overload.tags for overload in overloads)


@functools.cache
def arithmetic(name: str) -> int:
    """Operations per element, about."""
    base = name.rstrip("_").removeprefix("_foreach_")
    known = ARITHMETIC.get(base)
    if known is None:
        known = 1 if _is_known(name) and not name.endswith("_backward") else UNKNOWN_ARITHMETIC
    return known


def is_composite(func: Any) -> bool:
    """Whether torch makes an operator of others, which are counted by themselves."""
    name = func.name()
    # Operators of TorchScript alone are unknown to the dispatcher.
    known = torch._C._dispatch_has_kernel(name)
    return known and bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd"))


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
    if name.rstrip("_") in _DOTS and len(inputs) >= 2:
        base = name.rstrip("_")
        left = inputs[1] if base in ("addmm", "baddbmm", "addbmm", "addmv", "_addmm_activation") else inputs[0]
        summed = math.prod(left.shape[::2]) if base == "addbmm" else left.shape[-1] if left.dim() else 1
        flops = 2 * (outputs[0].numel() if outputs else 0) * summed
    elif name in _CONVOLUTIONS and outputs:
        weight = inputs[1]
        transposed = name in ("convolution", "_convolution") and len(args) > 6 and bool(args[6])
        flops = 2 * (inputs[0] if transposed else outputs[0]).numel() * math.prod(weight.shape[1:])
    elif "attention" in name and outputs:
        query, key = inputs[0], inputs[1]
        flops = 4 * math.prod(query.shape) * key.shape[-2]
    else:
        sizes = [tensor.numel() for tensor in inputs + outputs]
        # A list of tensors is worked on one by one.
        each = tensors_in(args[:1]) if name.startswith("_foreach_") else []
        elements = sum(tensor.numel() for tensor in each) or max(sizes, default=0)
        flops = elements * arithmetic(name)
    return name, moved, flops, True
