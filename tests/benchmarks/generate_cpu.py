"""Tokens per second of the transformers engine on the CPU, at the shape of the shipped policy; one JSON line.
`tokens_per_cpu_s` is what a machine that does other things beside can be compared by.

    python -m tests.benchmarks.generate_cpu --threads 2 --rows 64

The load is that of a run: groups of 8 requests share a prompt, completions differ in length, and as many episodes are
kept in flight as there are rows. `--unshared` gives every request a prompt of its own, as second turns have.
"""

import argparse
import asyncio
import json
import random
import time

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from core.generation.engine import Sampling
from core.generation.transformers_engine import TransformersEngine

GROUP = 8


def model() -> Qwen3ForCausalLM:
    """1.7 M parameters, random."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=512,
        hidden_size=192,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=48,
        intermediate_size=512,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
    )
    return Qwen3ForCausalLM(config).float()


async def measure(args: argparse.Namespace) -> dict[str, float | int | bool]:
    how = {"generic": args.decoder == "generic", "compiled": args.decoder == "compiled"}
    engine = TransformersEngine(model(), batch_rows=args.rows, threads=args.threads, **how)
    await engine.start()
    draw = random.Random(0)
    requests = []
    for number in range(args.requests):
        if number % GROUP == 0 or args.unshared:
            prompt = [draw.randrange(512) for _ in range(args.prompt)]
        requests.append((prompt, draw.randint(args.completion // 2, args.completion * 3 // 2)))
    await asyncio.gather(*(engine.generate(p, Sampling(max_new_tokens=8, seed=0)) for p, _ in requests[: args.rows]))
    gate = asyncio.Semaphore(args.rows)

    async def one(prompt: list[int], tokens: int, seed: int) -> int:
        async with gate:
            return len((await engine.generate(prompt, Sampling(max_new_tokens=tokens, seed=seed))).ids)

    began, began_cpu = time.perf_counter(), time.process_time()
    lengths = await asyncio.gather(*(one(p, n, seed) for seed, (p, n) in enumerate(requests)))
    wall_s, cpu_s = time.perf_counter() - began, time.process_time() - began_cpu
    await engine.stop()
    return {
        "tokens_per_s": round(sum(lengths) / wall_s, 1),
        "tokens": sum(lengths),
        "wall_s": round(wall_s, 3),
        "tokens_per_cpu_s": round(sum(lengths) / cpu_s, 1),
        "rows": args.rows,
        "threads": args.threads,
        "decoder": args.decoder,
        "unshared": args.unshared,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--prompt", type=int, default=110)
    parser.add_argument("--completion", type=int, default=190)
    parser.add_argument(
        "--decoder",
        default="compiled",
        choices=("compiled", "written", "generic"),
        help="with the compiled attention, with torch alone, or the transformers forward",
    )
    parser.add_argument("--unshared", action="store_true", help="a prompt of its own for every request")
    print(json.dumps({"benchmark": "generate_cpu", **asyncio.run(measure(parser.parse_args()))}))


if __name__ == "__main__":
    main()
