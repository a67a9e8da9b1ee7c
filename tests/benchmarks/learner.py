"""Tokens per second of a learner's step on one GPU, beside TRL's GRPO step with the same model, tokens and types.

    python -m tests.benchmarks.learner                        one configuration, TRL, one JSON line at the end
    python -m tests.benchmarks.learner --sweep                every configuration of CONFIGURATIONS, a line for each
    python -m tests.benchmarks.learner --device cpu --tiny    the same program on a tiny model, without a GPU

Qwen3-0.6B shape with random weights, 1 x 16,384 and 8 x 2,048 tokens in one packed row, all but 16 tokens of each
sequence trained. A step is the learner's own `Trainer.step`: plan, pack, transfer, forward, backward, gradient norm,
clipping, AdamW over float32 masters, metrics. TRL is measured in the same call (`tests/benchmarks/learner_trl.py`);
`trl_tokens_per_s` is its fastest variant that keeps float32 parameters as ours does, and `ratio` is against that one.
`mfu` is (6N + attention flops) x tokens/s over the card's peak (`core/training/flops.py`).
"""

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.benchmarks.learner_shapes import MODELS, PROMPT_TOKENS, advantages, parse, save_model, token_ids

DEFAULT = "compiled"
CONFIGURATIONS: dict[str, dict] = {
    "compiled": {"compile": True},
    "varlen": {"compile": True, "attention": "varlen"},
    "cudnn": {"compile": True, "attention": "cudnn"},
    "cudnn-grouped": {"compile": True, "attention": "cudnn", "grouped": True},
    "chunk-1024": {"compile": True, "head_chunk_tokens": 1024},
    "chunk-4096": {"compile": True, "head_chunk_tokens": 4096},
    "chunk-8192": {"compile": True, "head_chunk_tokens": 8192},
    "head-recompute": {"compile": True, "head": "recompute"},
    "head-cache-6gib": {"compile": True, "head": "recompute", "head_cache_gib": 6.0},
    "selective": {"compile": True, "activation_checkpointing": "selective"},
    "attention-kept": {"compile": True, "activation_checkpointing": "attention"},
    "full": {"compile": True, "activation_checkpointing": "full"},
    "eager": {},
    "eager-selective": {"activation_checkpointing": "selective"},
    "sharded": {"compile": True, "shard": "always"},
    "fa3": {"compile": True, "attention": "fa3"},
    "fa4": {"compile": True, "attention": "fa4"},
}


def samples(shape: str, vocab: int) -> list:
    import numpy as np

    from core.episodes.samples import Sample

    rows, tokens = parse(shape)
    mask = np.r_[np.zeros(PROMPT_TOKENS, np.uint8), np.ones(tokens - PROMPT_TOKENS, np.uint8)]
    return [
        Sample(
            group_id="g", index=i, turn=0, role="generator", mask=mask, ids=ids, ret=ret,
            logprobs=np.where(mask, -np.log(vocab), 0).astype(np.float32),
            versions=np.where(mask, 0, -1).astype(np.int32),
        )
        for i, (ids, ret) in enumerate(zip(token_ids(shape, vocab), advantages(rows), strict=True))
    ]  # fmt: skip


def measure(model: str, shapes: list[str], said: argparse.Namespace, fields: dict, out: dict) -> None:
    """Fills out[shape] with the figures of one configuration, shape after shape."""
    from core.training import flash
    from core.training.ranks import RankGroup
    from core.training.settings import TrainerSettings

    fields = dict(fields)
    flash.GROUPED_CUDNN = fields.pop("grouped", False)
    budget = max(rows * tokens for rows, tokens in map(parse, shapes))
    cpu = said.device == "cpu"
    ranks = RankGroup(
        TrainerSettings(
            model=model, device=said.device, dtype="float32" if cpu else "bfloat16", kl_coef=0.0, entropy_coef=0.0,
            baseline="none", max_tokens_per_rank=budget, ranks=said.ranks, **fields,
        )
    )  # fmt: skip
    try:
        for shape in shapes:
            batch = samples(shape, MODELS[said.model]["vocab_size"])
            began = time.perf_counter()
            for _ in range(said.warmup):
                ranks.step(batch)
            warmup_s = time.perf_counter() - began
            steps = [ranks.step(batch) for _ in range(said.steps)]
            middle = statistics.median_low([s["step_s"] for s in steps])
            numbers = next(s for s in steps if s["step_s"] == middle)
            assert numbers["applied"] == 1.0, numbers
            parts = {n: round(numbers[n], 4) for n in ("pack_s", "forward_backward_s", "optimizer_s")}
            out[shape] = {
                "tokens_per_s": round(numbers["tokens_per_s"]),
                "mfu": round(numbers["mfu"], 4) if "mfu" in numbers else None,
                "peak_gib": round(max(s["peak_gib"] for s in steps), 2) if "peak_gib" in numbers else None,
                "step_s": round(middle, 4), **parts, "warmup_s": round(warmup_s, 1),
                "grad_norm": round(numbers["grad_norm"], 5), "entropy": round(numbers["entropy"], 4),
            }  # fmt: skip
    finally:
        ranks.close()


def run_trl(model: str, said: argparse.Namespace) -> list[dict]:
    """TRL's lines, from a process of its own; an error is a line too."""
    command = [sys.executable, "-m", "tests.benchmarks.learner_trl", model, "--device", said.device,
               "--shapes", said.shapes, "--seconds", str(said.trl_seconds)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "WANDB_MODE": "disabled"},
                          timeout=said.trl_seconds + 120)  # fmt: skip
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"')]
    if done.returncode or any("error" in line for line in lines):
        print(done.stderr[-3000:], file=sys.stderr)
    return lines or [{"error": done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no answer"}]


def best_trl(lines: list[dict], shape: str) -> dict | None:
    """TRL's fastest variant with float32 parameters at a shape."""
    found = [x for x in lines if x.get("shape") == shape and "tokens_per_s" in x and "bf16" not in x["variant"]]
    return max(found, key=lambda x: x["tokens_per_s"], default=None)


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    ask.add_argument("--tiny", action="store_true", help="a tiny model and short rows")
    ask.add_argument("--model", choices=tuple(MODELS), default="0.6b")
    ask.add_argument("--shapes", default="1x16384,8x2048")
    ask.add_argument("--sweep", action="store_true", help="measure every configuration")
    ask.add_argument("--configurations", default="", help=f"some of: {', '.join(CONFIGURATIONS)}")
    ask.add_argument("--ranks", type=int, default=1)
    ask.add_argument("--steps", type=int, default=4)
    ask.add_argument("--warmup", type=int, default=2)
    ask.add_argument("--no-trl", action="store_true")
    ask.add_argument("--seconds", type=float, default=150.0, help="no configuration is begun after so long")
    ask.add_argument("--trl-seconds", type=float, default=100.0)
    said = ask.parse_args()
    if said.tiny:
        said.model, said.shapes = "tiny", "1x256,4x64"
    shapes = said.shapes.split(",")
    names = said.configurations.split(",") if said.configurations else list(CONFIGURATIONS) if said.sweep else [DEFAULT]
    unknown = sorted(set(names) - set(CONFIGURATIONS))
    if unknown:
        ask.error(f"unknown configuration {unknown[0]!r}; known: {', '.join(CONFIGURATIONS)}")

    import torch

    began = time.perf_counter()
    results: dict[str, dict] = {}
    fast = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=fast) as folder:
        save_model(said.model, folder, said.device)
        for name in names:
            results[name] = {}
            if time.perf_counter() - began > said.seconds:
                print(json.dumps({"configuration": name, "error": "no time left"}), flush=True)
                continue
            try:
                measure(folder, shapes, said, CONFIGURATIONS[name], results[name])
            except Exception as error:  # one configuration that does not run must not hide the others
                traceback.print_exc(limit=-6, file=sys.stderr)
                results[name]["error"] = f"{type(error).__name__}: {str(error)[:300]}"
            print(json.dumps({"configuration": name, **results[name]}), flush=True)
            gc.collect()
            torch._dynamo.reset()
            if said.device == "cuda":
                torch.cuda.empty_cache()
        trl = [] if said.no_trl else run_trl(folder, said)
    for line in trl:
        print(json.dumps({"trl": line}), flush=True)
    print(json.dumps(final(results, trl, shapes, said)))


def final(results: dict[str, dict], trl: list[dict], shapes: list[str], said: argparse.Namespace) -> dict:
    """The line that counts: the configuration whose slowest shape, against its best, is fastest."""
    import torch

    whole = {name: r for name, r in results.items() if all(shape in r for shape in shapes)}
    line: dict = {
        "benchmark": "learner", "model": said.model, "ranks": said.ranks,
        "card": torch.cuda.get_device_name() if said.device == "cuda" else "cpu",
        "versions": {"torch": torch.__version__} | next((x["versions"] for x in trl if "versions" in x), {}),
    }  # fmt: skip
    if not whole:
        return line | {"error": "no configuration measured every shape"}
    most = {shape: max(r[shape]["tokens_per_s"] for r in whole.values()) for shape in shapes}
    name = max(whole, key=lambda n: min(whole[n][shape]["tokens_per_s"] / most[shape] for shape in shapes))
    line["configuration"] = {"name": name, **CONFIGURATIONS[name]}
    for shape in shapes:
        ours, theirs = whole[name][shape], best_trl(trl, shape)
        line[shape] = ours | {
            "trl_tokens_per_s": theirs["tokens_per_s"] if theirs else None,
            "trl_peak_gib": theirs["peak_gib"] if theirs else None,
            "trl_variant": theirs["variant"] if theirs else None,
            "ratio": round(ours["tokens_per_s"] / theirs["tokens_per_s"], 2) if theirs else None,
        }
    return line


if __name__ == "__main__":
    main()
