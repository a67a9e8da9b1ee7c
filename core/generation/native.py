"""One step's attention in C, where a compiler is at hand: the half of a small model's step that torch does slowly.

Attention of one new token per row over rows of different lengths is a stream through the cache. Batched matrix
products read it at a third of the memory's speed and read the padding as well; this function reads what is there.
It takes the fused projections of a step and does everything up to the output projection: norm and rotation of queries
and keys, the append to the cache, softmax, weighted values.

`load` compiles at first use (0.3 s) into the user's cache folder and answers None without a compiler; the decoder then
takes torch's operations, with the same results to rounding.
"""

import ctypes
import os
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from core.identity import digest

SOURCE = r"""
#include <math.h>
#include <string.h>

/* e^x for x <= 0, to 2 units in the last place; expf is a call per element, this is a loop the compiler vectorizes. */
static inline float exponential(float x)
{
    const float bounded = x < -87.0f ? -87.0f : x, n = rintf(bounded * 1.44269504f);
    const float r = bounded - n * 0.693359375f + n * 2.12194440e-4f;
    const float tail = 0.5f + r * (1.66666546e-1f + r * (4.16657962e-2f + r * (8.33345205e-3f + r * 1.39819994e-3f)));
    const float series = 1 + r * (1 + r * tail);
    const int bits = ((int)n + 127) << 23;
    float power;
    memcpy(&power, &bits, 4);
    return series * power;
}

/* qkv   [rows, HEADS + 2 KV, DIM]   projections of the new tokens
   q_norm, k_norm [DIM]              weights of the norms of queries and keys
   cos, sin [context, DIM]           sin carries the sign of the rotated half
   keys, values [slots, KV, columns, DIM]
   at    [rows]                      where each row's new token goes: its cached tokens so far
   out   [rows, HEADS, DIM]
   scores                            room for GROUP * columns floats                                   */
void attend(const float *qkv, const float *q_norm, const float *k_norm, const float *cos, const float *sin,
            float *keys, float *values, const long *at, float *out, float *scores,
            long first, long last, long columns, float eps, float scale)
{
    enum { HEADS = KV * GROUP, WIDTH = (HEADS + 2 * KV) * DIM, HALF = DIM / 2 };
    float turned[(HEADS + KV) * DIM];
    for (long row = first; row < last; row++) {
        const float *own = qkv + row * WIDTH, *c = cos + at[row] * DIM, *s = sin + at[row] * DIM;
        const long length = at[row] + 1;
        for (int head = 0; head < HEADS + KV; head++) {
            const float *x = own + head * DIM, *w = head < HEADS ? q_norm : k_norm;
            float *y = turned + head * DIM, n[DIM], sum = 0;
            for (int d = 0; d < DIM; d++) sum += x[d] * x[d];
            const float inverse = 1.0f / sqrtf(sum / DIM + eps);
            for (int d = 0; d < DIM; d++) n[d] = x[d] * inverse * w[d];
            for (int d = 0; d < HALF; d++) {
                y[d] = n[d] * c[d] + n[d + HALF] * s[d];
                y[d + HALF] = n[d + HALF] * c[d + HALF] + n[d] * s[d + HALF];
            }
        }
        for (int head = 0; head < KV; head++) {
            float *k = keys + (row * KV + head) * columns * DIM, *v = values + (row * KV + head) * columns * DIM;
            const float *q = turned + head * GROUP * DIM;
            for (int d = 0; d < DIM; d++) {
                k[at[row] * DIM + d] = turned[(HEADS + head) * DIM + d];
                v[at[row] * DIM + d] = own[(HEADS + KV + head) * DIM + d];
            }
            float total[GROUP], mixed[GROUP][DIM];
            for (long t = 0; t < length; t++)
                for (int g = 0; g < GROUP; g++) {
                    float dot = 0;
                    for (int d = 0; d < DIM; d++) dot += q[g * DIM + d] * k[t * DIM + d];
                    scores[g * columns + t] = dot * scale;
                }
            for (int g = 0; g < GROUP; g++) {
                float *p = scores + g * columns, most = p[0], sum = 0;
                for (long t = 1; t < length; t++) most = p[t] > most ? p[t] : most;
                for (long t = 0; t < length; t++) p[t] = exponential(p[t] - most);
                for (long t = 0; t < length; t++) sum += p[t];
                total[g] = sum;
                for (int d = 0; d < DIM; d++) mixed[g][d] = 0;
            }
            for (long t = 0; t < length; t++)
                for (int g = 0; g < GROUP; g++) {
                    const float p = scores[g * columns + t];
                    for (int d = 0; d < DIM; d++) mixed[g][d] += p * v[t * DIM + d];
                }
            for (int g = 0; g < GROUP; g++)
                for (int d = 0; d < DIM; d++) out[(row * HEADS + head * GROUP + g) * DIM + d] = mixed[g][d] / total[g];
        }
    }
}
"""
FLAGS = (
    *("-O3", "-march=native", "-fPIC", "-shared", "-std=c11"),
    # What sums need to be vectorized; without -ffast-math's change of the whole process's treatment of tiny numbers.
    *("-fassociative-math", "-fno-signed-zeros", "-fno-trapping-math", "-fno-math-errno", "-freciprocal-math"),
)

T = torch.Tensor
Attend = Callable[[T, T, T, T, T, T], T]
"""(qkv [rows, (heads + 2 kv heads) · dim], q norm [dim], k norm [dim], keys, values [slots, kv heads, columns, dim],
at [rows] int64) -> [rows, heads · dim]. New keys and values are written to the caches at column `at`. All tensors are
contiguous, float32 where nothing else is said."""


def load(
    *, heads: int, kv_heads: int, dim: int, eps: float, cos: torch.Tensor, sin: torch.Tensor, threads: int = 1
) -> Attend | None:
    """The function for these shapes; `cos` and `sin` are [context, dim] float32. None where there is no C compiler or
    it fails. Rows are shared out over `threads` threads."""
    if dim % 2 or heads % kv_heads:
        return None
    library = _build(f"-DKV={kv_heads}", f"-DGROUP={heads // kv_heads}", f"-DDIM={dim}")
    if library is None:
        return None
    function = ctypes.CDLL(str(library)).attend
    pointer, number = ctypes.c_void_p, ctypes.c_long
    function.argtypes = [*[pointer] * 10, number, number, number, ctypes.c_float, ctypes.c_float]
    function.restype = None
    helpers = ThreadPoolExecutor(threads - 1, "attend") if threads > 1 else None
    scores = torch.empty(threads, heads // kv_heads * len(cos))
    scale = dim**-0.5

    def attend(qkv: T, q_norm: T, k_norm: T, keys: T, values: T, at: T) -> T:
        rows, columns = len(at), keys.shape[2]
        out = torch.empty(rows, heads * dim)
        tensors = [t.data_ptr() for t in (qkv, q_norm, k_norm, cos, sin, keys, values, at, out)]

        def part(share: int) -> None:
            first, last = rows * share // threads, rows * (share + 1) // threads
            function(*tensors, scores[share].data_ptr(), first, last, columns, eps, scale)

        if helpers is None:
            part(0)
        else:
            others = [helpers.submit(part, share) for share in range(1, threads)]
            part(0)
            for other in others:
                other.result()
        return out

    return attend


def _build(*shape: str) -> Path | None:
    """The compiled library, made once per source, shape, compiler and processor."""
    compiler = shutil.which(os.environ.get("CC", "") or "cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or sysconfig.get_platform().startswith("win"):
        return None
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout
    name = f"attend-{digest(SOURCE, *FLAGS, *shape, version, _processor(), size=8)}.so"
    for folder in (Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kernelmill", _private()):
        if (folder / name).exists():
            return folder / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder) as aside:
                source, made = Path(aside, "attend.c"), Path(aside, name)
                source.write_text(SOURCE)
                command = [compiler, *FLAGS, *shape, str(source), "-o", str(made), "-lm"]
                if subprocess.run(command, capture_output=True).returncode:
                    return None
                os.replace(made, folder / name)
        except OSError:
            continue
        return folder / name
    return None


def _private() -> Path:
    """A folder of this user's own, for machines without a home that can be written."""
    return Path(tempfile.gettempdir()) / f"kernelmill-{os.getuid()}"


def _processor() -> str:
    """What `-march=native` depends on: a home may be shared by several machines."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line for line in lines if line.startswith(("flags", "Features"))), os.uname().machine)
