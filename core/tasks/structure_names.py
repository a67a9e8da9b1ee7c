"""One name for each operator, however it is spelled: as a module, a function, a method or a symbol."""

ALIASES = {
    "absolute": "abs", "subtract": "sub", "multiply": "mul", "mult": "mul", "divide": "div", "truedivide": "div",
    "negative": "neg", "usub": "neg", "invert": "not", "logicalnot": "not", "bitwisenot": "not", "logicaland": "and",
    "bitand": "and", "bitwiseand": "and", "logicalor": "or", "bitor": "or", "bitwiseor": "or", "logicalxor": "xor",
    "bitxor": "xor", "bitwisexor": "xor", "greater": "gt", "greaterequal": "ge", "gte": "ge", "less": "lt",
    "lessequal": "le", "lte": "le", "noteq": "ne", "notequal": "ne", "clip": "clamp", "clampmin": "clamp",
    "clampmax": "clamp", "mm": "matmul", "bmm": "matmul", "matmult": "matmul", "view": "reshape", "flatten": "reshape",
    "unflatten": "reshape", "t": "transpose", "mt": "transpose", "swapaxes": "transpose", "amax": "max", "amin": "min",
    "mod": "remainder", "mv": "matmul", "batchnorm1d": "batchnorm", "batchnorm2d": "batchnorm",
    "batchnorm3d": "batchnorm", "instancenorm1d": "instancenorm", "instancenorm2d": "instancenorm",
    "instancenorm3d": "instancenorm", "concat": "cat", "concatenate": "cat",
    "scaleddotproductattention": "attention", "multiheadattention": "attention",
}  # fmt: skip
"""Other spellings; lower case and without underscores."""

TRANSPARENT = frozenset((
    "contiguous", "clone", "detach", "data", "to", "float", "half", "double", "bfloat16", "long", "int", "bool",
    "typeas", "cuda", "cpu", "requiresgrad", "identity", "astensor",
))  # fmt: skip
"""Calls that keep the values: not part of the structure."""

SHAPE_QUERIES = frozenset(
    ["size", "dim", "ndim", "numel", "shape", "dtype", "device", "stride", "nelement", "isfloatingpoint", "itemsize"]
)
"""What gives numbers about a tensor, not values."""

ARITHMETIC = frozenset(
    ["add", "sub", "mul", "div", "pow", "maximum", "minimum", "gt", "ge", "lt", "le", "eq", "ne", "remainder", "fmod"]
)
"""Operators whose constant operands are part of the structure, as `c`: `x + 1` adds something, `sum(x, 1)` does not."""

WEIGHTED = frozenset((
    "linear", "bilinear", "embedding", "embeddingbag", "layernorm", "groupnorm", "rmsnorm", "batchnorm", "instancenorm",
    "prelu", "conv1d", "conv2d", "conv3d", "convtranspose1d", "convtranspose2d", "convtranspose3d",
))  # fmt: skip
"""Operators that own their weights when they are modules: weights given to the function don't count either."""


def operator_name(name: str) -> str:
    """`F.layer_norm`, `nn.LayerNorm`, `layer_norm_` -> `layernorm`."""
    plain = name.rsplit(".", 1)[-1].replace("_", "").lower()
    return ALIASES.get(plain, plain)
