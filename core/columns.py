"""Token columns: one-dimensional arrays as raw little-endian bytes.

Arrays of a rollout travel as bytes and never as lists: converting lists costs more than everything else in a message.
The four columns and their types are fixed here:

    ids       int32     token ids
    logprobs  float32   natural log of the probability under the distribution that was sampled from
    versions  int32     policy version that sampled the token
    mask      uint8     1 where the token is trained on
"""

from collections.abc import Sequence

import numpy as np

DTYPES = {"ids": "<i4", "logprobs": "<f4", "versions": "<i4", "mask": "u1"}


def pack(column: str, values: Sequence[int] | Sequence[float] | np.ndarray) -> bytes:
    """`values` [tokens] as the bytes of `column`; raises ValueError on a wrong rank or a non-finite log-prob."""
    array = np.asarray(values, dtype=DTYPES[column])
    if array.ndim != 1:
        raise ValueError(f"column {column!r} is one-dimensional, got shape {array.shape}")
    if column == "logprobs" and not np.isfinite(array).all():
        raise ValueError("non-finite log-probs: the engine that sampled them is broken")
    return array.tobytes()


def unpack(column: str, data: bytes) -> np.ndarray:
    """The array [tokens] behind `data`, without a copy (read-only)."""
    dtype = np.dtype(DTYPES[column])
    if len(data) % dtype.itemsize:
        raise ValueError(f"column {column!r} holds {len(data)} bytes, not a multiple of {dtype.itemsize}")
    return np.frombuffer(data, dtype=dtype)


def item_bytes(column: str) -> int:
    """Bytes of one token in `column`."""
    return np.dtype(DTYPES[column]).itemsize


def length(column: str, data: bytes) -> int:
    """How many tokens `data` holds."""
    return len(data) // item_bytes(column)
