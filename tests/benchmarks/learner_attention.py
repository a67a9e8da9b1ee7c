"""The attention operator alone, every way that this machine has: milliseconds, TFLOP/s and errors, as JSON lines.

    python -m tests.benchmarks.learner_attention [--ways varlen,cudnn] [--shapes 1x16384,8x2048,...]

Qwen3-0.6B heads (16 query, 8 key, 128 wide), bfloat16, causal. Flops are counted as 2 products forward and 5 backward,
half the square. `first_s` is the first call of a shape, forward and backward: what building a plan costs. `error` is
the largest difference to attention written out in float32, over the largest value (shapes of at most 4096 tokens).
Every way has a process of its own.
"""

import argparse
import json
import sys
import time
import traceback

from tests.benchmarks.children import json_lines
from tests.benchmarks.learner_shapes import parse

WAYS = ("varlen", "cudnn", "cudnn-repeated", "auto")
SHAPES = "1x512,3x512,1000+13+1+64+900+870+2,1x16384,8x2048,4x4096,16x1024,3000+2900+2500+2000+2000+1500+1284+1200"
HEADS, KV_HEADS, DIM = 16, 8, 128


def milliseconds(call, times: int = 10) -> float:
    import torch

    for _ in range(2):
        call()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(times):
        call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / times


def errors(got, inputs, lengths, cu) -> list[float]:
    """Of output and gradients of q, k, v."""
    import torch

    from core.training import flash

    leaves = [x.float().requires_grad_() for x in inputs[:3]]
    key = flash.remember(flash.make_layout(lengths, cu, "written"))
    out, _ = torch.ops.kernelmill.packed_attention(*leaves, key, DIM**-0.5)
    out.backward(inputs[3].float())
    want = [out.detach(), *(x.grad for x in leaves)]
    return [float((a.float() - b).abs().max() / b.abs().max()) for a, b in zip(got, want, strict=True)]


def measure(way: str, shape: str) -> dict:
    import torch

    from core.training import flash

    backend, _, repeated = way.partition("-")
    flash.GROUPED_CUDNN = not repeated
    lengths = parse(shape)
    n = sum(lengths)
    g = torch.Generator("cuda").manual_seed(0)
    inputs = [
        torch.randn(n, heads, DIM, generator=g, device="cuda", dtype=torch.bfloat16)
        for heads in (HEADS, KV_HEADS, KV_HEADS, HEADS)
    ]
    cu = torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32, device="cuda")
    layout = flash.make_layout(lengths, cu, backend)
    key, scale, grad = flash.remember(layout), DIM**-0.5, inputs[3]
    torch.cuda.synchronize()
    began = time.perf_counter()
    out, lse = torch.ops.kernelmill.packed_attention(*inputs[:3], key, scale)
    grads = torch.ops.kernelmill.packed_attention_backward(grad, *inputs[:3], out, lse, key, scale)
    torch.cuda.synchronize()
    line: dict = {
        "backend": layout.backend,
        "calls": len(layout.calls),
        "first_s": round(time.perf_counter() - began, 3),
    }
    line["finite"] = all(bool(torch.isfinite(x).all()) for x in (out, *grads))
    if n <= 4096:
        line["error"] = [round(e, 5) for e in errors((out, *grads), inputs, lengths, cu)]
        return line
    forward = milliseconds(lambda: torch.ops.kernelmill.packed_attention(*inputs[:3], key, scale))
    backward = milliseconds(
        lambda: torch.ops.kernelmill.packed_attention_backward(grad, *inputs[:3], out, lse, key, scale)
    )
    product = HEADS * DIM * sum(length**2 for length in lengths)  # flops of one, causal
    return line | {
        "forward_ms": round(forward, 3), "backward_ms": round(backward, 3),
        "forward_tflops": round(2 * product / forward / 1e9), "backward_tflops": round(5 * product / backward / 1e9),
    }  # fmt: skip


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--ways", default=",".join(WAYS))
    ask.add_argument("--shapes", default=SHAPES)
    ask.add_argument("--limit", type=float, default=60.0, help="seconds for one way")
    ask.add_argument("--here", action="store_true", help="measure in this process")
    said = ask.parse_args()
    for way in said.ways.split(","):
        if not said.here:
            command = [sys.executable, "-m", "tests.benchmarks.learner_attention", "--here", "--ways", way,
                       "--shapes", said.shapes]  # fmt: skip
            for line in json_lines(command, said.limit):
                print(json.dumps({"attention": way} | line), flush=True)
            continue
        for shape in said.shapes.split(","):
            try:
                print(json.dumps({"shape": shape} | measure(way, shape)), flush=True)
            except Exception as error:  # a shape that does not run must not hide the others
                traceback.print_exc()
                print(json.dumps({"shape": shape, "error": f"{type(error).__name__}: {str(error)[:300]}"}), flush=True)


if __name__ == "__main__":
    main()
