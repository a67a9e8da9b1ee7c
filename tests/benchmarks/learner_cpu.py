"""Tokens per second of a learner's step at the shape of the demo's policy, on this machine's CPU; one JSON line.

    python -m tests.benchmarks.learner_cpu [--threads 2] [--steps 5]

A step trains 4 groups of 8 first turns in packed micro-batches; all tokens of the rows are counted, prompts included.
`gflops` counts 6 flops a parameter and token, and attention; `matmul_gflops` is what one large float32 product reaches
in the same process, so that a busy or slow machine shows.
"""

import argparse
import json
import sys
import tempfile
import time

import numpy as np

SHAPE = {"hidden": 192, "layers": 4, "heads": 4, "kv_heads": 2, "head_dim": 48, "intermediate": 512, "vocab": 512}


def samples(prompt: int, completion: int, groups: int = 4, size: int = 8):
    from core.episodes.samples import Sample

    rng = np.random.default_rng(0)
    out = []
    for i in range(groups * size):
        n, m = (int(x * rng.uniform(0.8, 1.2)) for x in (prompt, completion))
        mask = np.r_[np.zeros(n, np.uint8), np.ones(m, np.uint8)]
        out.append(
            Sample(
                group_id=f"g{i // size}", index=i % size, turn=0, role="generator", mask=mask,
                ids=rng.integers(4, SHAPE["vocab"], n + m, dtype=np.int32), ret=float(rng.choice([0.0, 0.4, 1.4])),
                logprobs=np.where(mask, -6.2, 0).astype(np.float32), versions=np.where(mask, 0, -1).astype(np.int32),
            )
        )  # fmt: skip
    return out


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__)
    ask.add_argument("--threads", type=int, default=2)
    ask.add_argument("--steps", type=int, default=5)
    ask.add_argument("--prompt", type=int, default=60, help="mean tokens of a prompt")
    ask.add_argument("--completion", type=int, default=250, help="mean tokens of a completion")
    ask.add_argument("--budget", type=int, default=4096, help="tokens in a micro-batch")
    said = ask.parse_args()

    import torch
    from transformers import Qwen3Config

    from core.training.model import build_lm
    from core.training.settings import TrainerSettings
    from core.training.trainer import Trainer

    torch.set_num_threads(said.threads)
    config = Qwen3Config(
        vocab_size=SHAPE["vocab"], hidden_size=SHAPE["hidden"], num_hidden_layers=SHAPE["layers"],
        num_attention_heads=SHAPE["heads"], num_key_value_heads=SHAPE["kv_heads"], head_dim=SHAPE["head_dim"],
        intermediate_size=SHAPE["intermediate"], max_position_embeddings=1024, tie_word_embeddings=True,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        build_lm(config, seed=0).save_pretrained(folder)
        trainer = Trainer(
            TrainerSettings(
                model=folder, dtype="float32", device="cpu", kl_coef=0.0, entropy_coef=0.0, proximal="behaviour",
                max_tokens_per_rank=said.budget, threads=said.threads,
            )
        )  # fmt: skip
    batch = samples(said.prompt, said.completion)
    trainer.step(batch)  # allocators, thread pool
    took = sorted(trainer.step(batch)["step_s"] for _ in range(said.steps))
    tokens = sum(len(s.ids) for s in batch)
    parameters = sum(p.numel() for p in trainer.model.parameters())
    attention = sum(6 * SHAPE["layers"] * SHAPE["heads"] * SHAPE["head_dim"] * len(s.ids) ** 2 for s in batch)
    seconds = took[len(took) // 2]
    print(
        json.dumps(
            {
                "benchmark": "learner_cpu",
                "tokens_per_s": round(tokens / seconds),
                "step_s": round(seconds, 3),
                "step_s_best": round(took[0], 3),
                "tokens": tokens,
                "rows": len(batch),
                "threads": said.threads,
                "gflops": round((6 * parameters * tokens + attention) / seconds / 1e9, 1),
                "matmul_gflops": round(matmul_gflops(torch), 1),
                "torch": torch.__version__,
            }
        )
    )


def matmul_gflops(torch) -> float:
    a = torch.randn(1024, 1024)
    best = float("inf")
    for _ in range(5):
        started = time.perf_counter()
        a @ a
        best = min(best, time.perf_counter() - started)
    return 2 * 1024**3 / best / 1e9


if __name__ == "__main__":
    sys.exit(main())
