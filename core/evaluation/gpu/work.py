"""Who did the work on the device: reading a profile of the candidate beside one of the eager baseline. Trusted side.

Kernels are a candidate's own when its source defines them: a @triton.jit function, or a __global__ function in the CUDA
C++ that it holds. All others, Inductor's too, are a library's, so an unknown name never counts for the candidate. What
only moves bytes (copies, fills) counts for nobody while anything computes, as on the CPU tier.

The profile comes from the candidate's process. What is checked against what that process can't forge: the device's busy
time against the parent's measured runtime, both ways. What stays open is in docs/gpu-known-gaps.md.
"""

import ast
import math
import re
from typing import Any

import msgspec

from core import parsing
from core.evaluation.diagnosis import DOT_SHARE, TORCH_SHARE
from core.evaluation.findings import Finding, printable

MOST_ROWS = 256
_MOVERS = re.compile(
    r"^Mem(cpy|set)\b|direct_copy_kernel|bfloat16_copy_kernel|float16_copy_kernel|float8_copy_kernel|CatArrayBatchedCopy"
    r"|copy_device_to_device|FillFunctor|copy_kernel_cuda"
)
_MATRIX = re.compile(
    r"gemm|gemv|nvjet|cutlass|wgmma|xmma|conv(?!ert)|winograd|implicit_|fmha|flash_|attention|cudnn.*(fprop|dgrad|wgrad)"
    r"|dot_kernel|splitK|scudnn|triton_tem_",
    re.IGNORECASE,
)
"""Library kernels that do matrix products, convolutions or attention."""
_LIBRARY = re.compile(
    r"^(at|at_cuda_detail|cub|thrust|cutlass|cudnn|c10|torch|cublasLt|nvjet|pytorch_flash|fmha)(::|_)"
    r"|^triton_(poi|per|red|tem|mm|for|split_scan|unk)_|^(sm\d\d|ampere|hopper|volta|turing|maxwell|blackwell)_"
    r"|^(nvjet|cublas|cudnn|cutlass|splitKreduce|gemvx?|gemmk1|gemv2)",
    re.IGNORECASE,
)
"""Names that never count as the candidate's own, whatever its source says."""
_TO_HOST = re.compile(r"^Memcpy DtoH")
_BUSY_OVER, _BUSY_OVER_MS = 1.35, 0.05
"""The device may seem this much busier in profiled calls than a timed call takes."""
_IDLE_SHARE, _IDLE_MS, _LAUNCH_MS = 0.5, 2.0, 0.15
"""Of a call's time the device may be idle this share, or this long, or this long per kernel."""
_BESIDE_MS, _BESIDE_SHARE = 0.003, 0.1
_CLEAR_SHARE = 0.8
"""Of the limits, where no names of kernels are known."""
_CLEAR_OFF, _CLEAR_OFF_MS = 0.3, 0.01
"""How far a call's time may be from the timed one's, either way."""
_INDIRECT = re.compile(
    r"compile|inductor|dynamo|triton_kernels|load_inline|importlib|__import__|exec|eval"
    r"|hook|knobs|launcher|CudaLauncher|\.launch\b|\.run\b|__closure__|cell_contents|__wrapped__|__dict__|__code__"
    r"|\b(gc|inspect|ctypes|cffi|cupy|numba|pickle|marshal|sys)\b|_getframe|f_locals|f_back|globals\(|vars\(|etattr\("
    r"|\bcuda\.bindings\b|monkey|patch\b"
)
"""Words of sources whose launches may not be those of kernels that they define, or that may reach what counts them: a
launch's hook runs between its events, a closure holds the list of them. No reproach: such a source is profiled."""
GHOST_SHARE = 0.95


class Row(msgspec.Struct, frozen=True, array_like=True):
    """Kernels of one name."""

    name: str
    count: float
    us: float
    """Microseconds of all of them."""


class _Rows(msgspec.Struct, frozen=True, array_like=True):
    busy_us: float
    rows: list[Row]
    beside_us: float


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """What ran on the device in one forward, on average."""

    busy_ms: float
    """Time in which anything ran."""
    rows: tuple[Row, ...]
    beside_ms: float = 0.0
    """Time of kernels that ran beside the flush that comes before the call."""
    launches: int = 0
    """Triton launches and calls of extensions that the child counted."""

    @property
    def total_us(self) -> float:
        return sum(row.us for row in self.rows)


def read(answer: Any) -> Profile | Finding:
    """A child's answer to `profile`, less its flush; a finding when it is none of ours."""
    try:
        block, alone, launches = msgspec.convert(answer, tuple[_Rows, _Rows, int])
    except (msgspec.ValidationError, RecursionError):
        return _tampered("an answer of the profiler that is none of ours")
    known = [*block.rows, *alone.rows]
    numbers = [block.busy_us, alone.busy_us, block.beside_us, *(row.us for row in known), *(row.count for row in known)]
    if len(known) > MOST_ROWS or not all(0 <= n < 1e12 and math.isfinite(n) for n in numbers):
        return _tampered("an answer of the profiler that is none of ours")
    off = {row.name: row for row in alone.rows}
    rows = []
    for row in block.rows:
        less = off.get(row.name, Row("", 0, 0.0))
        if row.count > less.count:
            rows.append(Row(printable(row.name), row.count - less.count, max(0.0, row.us - less.us)))
    return Profile(
        busy_ms=max(0.0, block.busy_us - alone.busy_us) / 1e3,
        rows=tuple(rows),
        beside_ms=block.beside_us / 1e3,
        launches=launches,
    )


class Shares(msgspec.Struct, frozen=True, kw_only=True):
    """What events around a candidate's launches say of one forward, behind flushes that keep the queue full."""

    total_ms: float
    own_ms: float
    launches: int
    late_ms: float
    """What the forward adds to the flushes before it, by the trusted side's clock."""
    replays: int = 0


def clearly_own(source: str, shares: Shares, eager_ms: float, runtime_ms: float) -> bool:
    """Whether these times alone show that own kernels do the work, so that no profile is needed to tell.

    True only where every question that the profile answers is answered: what is not an own launch (torch, a library,
    gaps) is far below what may be a library's; it takes as long as it was timed at; and it waits for what came before.
    """
    numbers = (shares.total_ms, shares.own_ms, shares.late_ms, eager_ms, runtime_ms)
    if not all(math.isfinite(number) and number > 0 for number in numbers):
        return False
    if not shares.launches or shares.replays or _INDIRECT.search(source):
        return False
    rest_ms = abs(shares.total_ms - shares.own_ms)  # launches side by side: more own time than there is
    most_ms = _CLEAR_SHARE * min(TORCH_SHARE * eager_ms, DOT_SHARE * min(eager_ms, shares.total_ms))
    same = abs(shares.total_ms - runtime_ms) <= _CLEAR_OFF * runtime_ms + _CLEAR_OFF_MS
    return rest_ms <= most_ms and same and shares.late_ms >= (1 - _CLEAR_OFF) * runtime_ms - _CLEAR_OFF_MS


class Names:
    """Which kernels a source defines."""

    def __init__(self, source: str, backend: str) -> None:
        tree = parsing.parse(source)
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        self._triton = {node.name for node in ast.walk(tree) if isinstance(node, functions)}
        texts = [
            node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
        written = [text for text in texts if "def " in text and "jit" in text]
        self._triton |= {name for text in written for name in re.findall(r"\bdef (\w+)\s*\(", text)}
        self._cuda: set[str] = set()
        if backend == "cuda" and any("__global__" in text for text in texts):
            self._cuda = {word for text in texts for word in re.findall(r"\b[A-Za-z_]\w*\b", text)}

    @property
    def triton(self) -> list[str]:
        """Functions that may be Triton kernels, helpers among them."""
        return sorted(self._triton)

    def own(self, kernel: str) -> bool:
        """Whether the candidate wrote the kernel of this name (as the profiler shows it, demangled)."""
        full, plain = function_name(kernel)
        if _LIBRARY.search(full):
            return False
        return kernel in self._triton or plain in self._cuda


def function_name(shown: str) -> tuple[str, str]:
    """`void ns::(anonymous namespace)::f<float, 4>(float*)` as ("ns::f", "f")."""
    text = shown.replace("(anonymous namespace)::", "").replace("<unnamed>::", "")
    text = re.split(r"[<(]", text, maxsplit=1)[0].strip()
    full = text.rpartition(" ")[2]
    return full, full.rpartition("::")[2]


def check(
    source: str, backend: str, mine: Profile, baseline: Profile, runtime_ms: float | None = None
) -> Finding | None:
    """What is wrong with who did the work; `runtime_ms` is the candidate's measured time of a call."""
    names = Names(source, backend)
    own = [row for row in mine.rows if names.own(row.name)]
    theirs = [row for row in mine.rows if not names.own(row.name)]
    if not own:
        top = _top(theirs)
        detail = f"The device ran {top}." if top else "Launch your kernel in forward, every time."
        return Finding(stage="launch", category="no_kernel", headline=_NO_KERNEL[backend == "cuda"], detail=detail)
    return (
        _fallback(theirs, mine, baseline)
        or _beside(mine)
        or (None if runtime_ms is None else _clocks(mine, runtime_ms))
    )


_NO_KERNEL = ("forward launched no Triton kernel of its own", "forward launched no __global__ kernel of its own")


def _fallback(theirs: list[Row], mine: Profile, baseline: Profile) -> Finding | None:
    """Library kernels that take a good part of what the whole reference takes, or do its matrix work."""
    moves_only = all(_MOVERS.search(row.name) for row in baseline.rows)
    counted = [row for row in theirs if moves_only or not _MOVERS.search(row.name)]
    counted += [row for row in theirs if _TO_HOST.search(row.name) and row not in counted]
    asked = sum(row.us for row in baseline.rows if moves_only or not _MOVERS.search(row.name))
    spent = sum(row.us for row in counted)
    headline = f"library kernels do the work: {_top(counted)}"
    if spent and spent >= TORCH_SHARE * asked:
        detail = (
            f"They take {spent:,.0f} us a call, the whole of eager PyTorch {asked:,.0f} us. Move the work into yours."
        )
        return Finding(stage="correctness", category="torch_fallback", headline=headline, detail=detail)
    matrix = [row for row in counted if _MATRIX.search(row.name)]
    spent = sum(row.us for row in matrix)
    asked = sum(row.us for row in baseline.rows if _MATRIX.search(row.name))
    total = sum(row.us for row in mine.rows)
    # By the candidate's own time too: in another precision a library's product takes a quarter of the reference's.
    if matrix and asked >= DOT_SHARE * baseline.total_us and spent >= DOT_SHARE * min(asked, total):
        headline = f"library kernels do the matrix operations: {_top(matrix)}"
        detail = f"They take {spent:,.0f} of your {total:,.0f} us a call. Write the product in your kernel."
        return Finding(stage="correctness", category="torch_fallback", headline=headline, detail=detail)
    return None


def _beside(mine: Profile) -> Finding | None:
    """Work that does not wait for what was on the stream before the call is work that its clock does not see."""
    if mine.beside_ms <= max(_BESIDE_MS, _BESIDE_SHARE * mine.total_us / 1e3):
        return None
    text = f"{mine.beside_ms:.3g} ms of a call's work run beside what came before it: a stream that is not joined"
    detail = "side.wait_stream(current) before, current.wait_stream(side) after the work."
    return _tampered(text, detail)


def _clocks(mine: Profile, runtime_ms: float) -> Finding | None:
    """The profile against the parent's clock: what is shown must be what is timed."""
    if mine.busy_ms > _BUSY_OVER * runtime_ms + _BUSY_OVER_MS:
        text = f"the device works {mine.busy_ms:.3g} ms a call while profiled, {runtime_ms:.3g} ms while timed"
        return _tampered(text, "Forward must do the same work in every call.")
    launches = sum(row.count for row in mine.rows)
    idle = runtime_ms - mine.busy_ms
    if idle > max(_IDLE_SHARE * runtime_ms, _IDLE_MS + _LAUNCH_MS * launches):
        text = f"of {runtime_ms:.3g} ms a call the device works {mine.busy_ms:.3g} ms: the rest is done elsewhere"
        if any(_TO_HOST.search(row.name) for row in mine.rows):
            return Finding(stage="correctness", category="data_escape", headline=text)
        return _tampered(text, "Do the work in kernels that forward launches.")
    return None


def ghost(share: float, held_back: int, mine: Profile) -> Finding | None:
    """A finding when `share` of the output is right although nothing that the own kernels stored was there, or when
    inputs that it has seen are answered without a launch.

    Says nothing where not all could be held back: a CUDA graph replays kernels without a launch.
    """
    if mine.launches and not held_back and share >= GHOST_SHARE:
        text = "the second call with the same inputs launched no kernel: the answer was remembered"
        return Finding(stage="correctness", category="decoy_kernel", headline=text)
    if not held_back or held_back < mine.launches or share < GHOST_SHARE:
        return None
    headline = f"{share:.0%} of the output stays right without what your kernels store"
    return Finding(stage="correctness", category="decoy_kernel", headline=headline)


def lines(source: str, backend: str, mine: Profile, baseline: Profile, most: int = 3) -> str:
    """For feedback: the kernels that take most time, the candidate's and the baseline's, a line each."""
    names = Names(source, backend)

    def told(profile: Profile, mark: bool) -> str:
        total = profile.total_us or 1.0
        ranked = sorted(profile.rows, key=lambda row: -row.us)[:most]
        parts = [
            f"{'your ' if mark and names.own(row.name) else ''}{_short(row.name)} {row.us / total:.0%}"
            for row in ranked
        ]
        return f"{', '.join(parts)} of {total:,.0f} us"

    return f"kernels: {told(mine, True)}\neager: {told(baseline, False)}"


def _short(name: str) -> str:
    """A name for a line: no return type, arguments or long template parameters; the functor of torch's is kept."""
    full, plain = function_name(name)
    if full.startswith("Memcpy") or name.startswith(("Memcpy", "Memset")):
        return name.split(" (")[0]
    functor = re.search(r"(\w+)(?:_kernel_cuda|_kernel_impl|Functor|_kernel)\b", name.partition("<")[2])
    text = f"{plain}({functor[1]})" if functor and full.startswith("at::") else plain
    return text if len(text) <= 48 else text[:47] + "…"


def _top(rows: list[Row]) -> str:
    ranked = sorted((row for row in rows if row.us), key=lambda row: -row.us)
    return ", ".join(dict.fromkeys(_short(row.name) for row in ranked[:3]))


def _tampered(text: str, detail: str = "") -> Finding:
    return Finding(stage="timing", category="tampering", headline=text, detail=detail)
