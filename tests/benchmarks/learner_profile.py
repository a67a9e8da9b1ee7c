"""Where the GPU's time goes in one step, from a trace of its kernels.

    report(trace events) -> {"window_ms", "idle_ms", "shares": {kind: share of the window}, "kinds_ms", "top": [...]}

The window is from the first kernel's start to the last one's end; what no kernel covers is idle. A product of matrices
belongs to the head when it stands beside one of the head's own kernels (`core.training.head_kernels`).
"""

import json
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

KINDS: tuple[tuple[str, str], ...] = (
    ("attention_backward", r"flash.*bwd|bprop|compute_dot_do_o|convert_dq|fmha.*backward|flashattnbwd|attn.*backward|"
                           r"dot_do_o|attend_backward"),
    ("attention_forward", r"flash.*fwd|fprop|fmha|flashattnfwd|attn.*forward|attend_forward"),
    ("head", r"^_statistics$|^_gradient$"),
    ("matmul", r"gemm|nvjet|cutlass|xmma|cublas|splitk|matmul"),
    ("optimizer", r"multi_tensor|fusedadam|lpnorm|foreach"),
    ("communication", r"nccl"),
    ("compiled", r"^triton_"),
    ("copy", r"memcpy|memset"),
    ("other", r""),
)  # fmt: skip
"""Kind of a kernel: the first whose pattern is found in the kernel's name, in lower case."""
_NEAR = 3
"""A product so many kernels behind the head's gradient may be the head's."""


def kind_of(name: str) -> str:
    """The kind of a kernel by its name; products of the head are "matmul" here."""
    lower = name.lower()
    return next(kind for kind, pattern in KINDS if re.search(pattern, lower))


def kinds_of(names: Sequence[str]) -> list[str]:
    """Kinds of the kernels of a stream in order, products of the head as "head_matmul"."""
    kinds = [kind_of(name) for name in names]
    for i, kind in enumerate(kinds):
        if kind != "head":
            continue
        if i and kinds[i - 1] == "matmul":  # logits
            kinds[i - 1] = "head_matmul"
        if names[i] == "_gradient":
            behind = [j for j in range(i + 1, min(i + 1 + _NEAR, len(kinds))) if kinds[j] == "matmul"]
            for j in behind[:2]:
                kinds[j] = "head_matmul"
    return kinds


def report(events: Sequence[dict], top: int = 30) -> dict:
    """events: of a Chrome trace; only kernels, copies and fills on the GPU are looked at (ts, dur in µs)."""
    gpu = sorted(
        (e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset") and "dur" in e),
        key=lambda e: e["ts"],
    )
    if not gpu:
        return {"error": "no kernels in the trace"}
    kinds = kinds_of([e["name"] for e in gpu])
    by_kind: dict[str, float] = defaultdict(float)
    by_name: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0])
    for event, kind in zip(gpu, kinds, strict=True):
        by_kind[kind] += event["dur"]
        entry = by_name[kind, event["name"]]
        entry[0] += event["dur"]
        entry[1] += 1
    began, ended, covered, gaps = gpu[0]["ts"], gpu[0]["ts"], 0.0, []
    last = ""
    for event in gpu:
        start, end = event["ts"], event["ts"] + event["dur"]
        if start > ended:
            gaps.append((start - ended, last, event["name"]))
        last = event["name"]
        covered += max(0.0, end - max(start, ended))
        ended = max(ended, end)
    window = ended - began
    names = sorted(by_name.items(), key=lambda item: -item[1][0])[:top]
    return {
        "window_ms": round(window / 1e3, 2),
        "idle_ms": round((window - covered) / 1e3, 2),
        "largest_gaps_ms": [[round(us / 1e3, 2), a[:60], b[:60]] for us, a, b in sorted(gaps, reverse=True)[:8]],
        "kernels": len(gpu),
        "shares": {kind: round(us / window, 4) for kind, us in sorted(by_kind.items(), key=lambda x: -x[1])}
        | {"idle": round(1 - covered / window, 4)},
        "kinds_ms": {kind: round(us / 1e3, 2) for kind, us in sorted(by_kind.items(), key=lambda x: -x[1])},
        "top": [
            {"kind": kind, "ms": round(us / 1e3, 3), "count": count, "name": name[:110]}
            for (kind, name), (us, count) in names
        ],
    }


def profile(step: Callable[[], object]) -> dict:
    """`report` of one call of `step` on the current GPU."""
    import torch
    from torch.profiler import ProfilerActivity

    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as traced:
        step()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        traced.export_chrome_trace(str(path))
        events = json.loads(path.read_text(errors="replace"))["traceEvents"]
    return report(events)
