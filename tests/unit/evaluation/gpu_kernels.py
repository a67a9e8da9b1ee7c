"""Kernels for the compile stage's tests: plain module-level code, described and compiled, never run."""

import math

import numpy as np
import torch
import triton
import triton.language as L
import triton.language as tl
from triton.language import load as fetch
from triton.language.extra import libdevice
from triton.language.extra.libdevice import erf

SCALE = 2.0
TABLE = {1: 2}
THREE = tl.constexpr(3)
OUT = tl.constexpr(tl.float32)
BLOCK_SIZE = 64


@triton.jit
def scaled(
    x,
    factor=2.0,  # a comment with (
    power: "tl.constexpr" = 4,
):
    return x * factor + power


@triton.heuristics({"extra": lambda arguments: 1})
@triton.jit(do_not_specialize=["n"])
def everything(x_ptr, out_ptr, n: tl.int32, extra, BLOCK: tl.constexpr = BLOCK_SIZE) -> None:
    """Aliases, members, libdevice, constants, numbers of other modules."""
    offsets = tl.program_id(0) * BLOCK + L.arange(0, BLOCK)
    x = fetch(x_ptr + offsets, mask=offsets < n)
    y = libdevice.tanh(x) + erf(x) + tl.extra.libdevice.exp(x)
    y = scaled(y) * THREE * np.pi + math.pi + triton.cdiv(BLOCK, 3) + tl.softmax(x)
    tl.store(out_ptr + offsets, y.to(OUT), mask=offsets < n)


@triton.jit
def reads_python_global(x_ptr):
    tl.store(x_ptr, SCALE)


@triton.jit
def reads_dict(x_ptr):
    tl.store(x_ptr, TABLE[1])


@triton.jit
def makes_dict(x_ptr):
    table = {1: 2.0}
    tl.store(x_ptr, table[1])


@triton.jit
def calls_torch(x_ptr):
    x = tl.load(x_ptr)
    tl.store(x_ptr, torch.relu(x))


@triton.jit
def calls_python(x_ptr):
    x = tl.load(x_ptr)
    tl.store(x_ptr, sum([x, x]))


@triton.jit
def dot(x_ptr, y_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    x = tl.load(x_ptr + m[:, None] * K + k[None, :])
    y = tl.load(y_ptr + k[:, None] * N + n[None, :])
    tl.store(out_ptr + m[:, None] * N + n[None, :], tl.dot(x, y))


@triton.jit
def bad_reshape(x):
    return tl.reshape(x, (3, 5))


@triton.jit
def calls_bad(x_ptr, BLOCK: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, BLOCK))
    tl.store(x_ptr + tl.arange(0, BLOCK), bad_reshape(x))


@triton.jit
def asserts(x_ptr, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK > 100, "BLOCK is too small")
    tl.store(x_ptr, 1.0)


@triton.jit
def applies(x_ptr, FUNCTION: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(x_ptr + offsets, FUNCTION(tl.load(x_ptr + offsets)))


@triton.jit
def softmax(x_ptr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(x_ptr + offsets, tl.softmax(tl.load(x_ptr + offsets)))


class Holder:
    @staticmethod
    @triton.jit
    def kernel(x_ptr):
        tl.store(x_ptr, 1.0)


def make(amount: float):
    step = tl.constexpr(amount)

    @triton.jit
    def helper(x):
        return x + step

    @triton.jit
    def kernel(x_ptr):
        tl.store(x_ptr, helper(tl.load(x_ptr)))

    return kernel


ADD_ONE, ADD_TWO = make(1.0), make(2.0)


@triton.jit
def late_compared(x_ptr, n):
    LATE: tl.constexpr = n * 2
    if LATE > 5:
        tl.store(x_ptr, 1.0)


@triton.jit
def late_mixed(x_ptr, n):
    LATE: tl.constexpr = tl.cdiv(n, 4)  # of an argument
    at = tl.arange(0, 16)
    tl.store(x_ptr + at, 1.0, mask=at < LATE)


@triton.jit
def late_again(x_ptr, n):
    LATE: tl.constexpr = tl.num_programs(0)
    TWICE: tl.constexpr = LATE * 2
    tl.store(x_ptr, n + TWICE)


@triton.jit
def late_called(x_ptr, n):
    LATE = tl.constexpr(n) + 1
    tl.store(x_ptr, LATE)


@triton.jit
def late_shape(x_ptr, n):
    tl.store(x_ptr + tl.arange(0, 16), tl.sum(tl.zeros((n,), tl.float32)))
