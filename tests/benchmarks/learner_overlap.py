"""What publishing, checkpointing and making the next batch take of a step: one after the other, and beside it.

    python -m tests.benchmarks.learner_overlap [--steps 6] [--device cuda --model 0.6B --every 1]

Both ways do the same work in one process on the same batches: `serial` makes samples, plans, packs, trains, writes the
weights and the checkpoint, and then goes on; `beside` is what the learner actor does (`actors.learner_stages`), the
prepared batch made by a thread and files written from snapshots by two. Rounds of both alternate, so that a busy
machine is busy for both. `share_*` is the part of a round's wall time in which no update ran, what is still being
written at its end included; `speedup` is of wall times, and needs a core (or a GPU) to spare. One JSON line.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

SHAPES = {
    "tiny": dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
                 intermediate_size=128, vocab_size=512),
    "30M": dict(hidden_size=512, num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=4, head_dim=64,
                intermediate_size=1536, vocab_size=8192),
    "0.6B": dict(hidden_size=1024, num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8, head_dim=128,
                 intermediate_size=3072, vocab_size=151936),
}  # fmt: skip


def episodes(count: int, prompt: int, completion: int, vocab: int, seed: int):
    """`count` groups of 8 as a generator would send them."""
    from core import columns
    from core.episodes.episode import Episode, Turn

    rng = np.random.default_rng(seed)
    out = []
    for i in range(8 * count):
        n, m = (int(x * rng.uniform(0.8, 1.2)) for x in (prompt, completion))
        turn = Turn(
            index=0, prompt_ids=columns.pack("ids", rng.integers(4, vocab, n)), score=float(rng.choice([0.0, 0.4])),
            completion_ids=columns.pack("ids", rng.integers(4, vocab, m)),
            logprobs=columns.pack("logprobs", np.full(m, -np.log(vocab))),
            versions=columns.pack("versions", np.zeros(m)),
        )  # fmt: skip
        out.append(Episode(group_id=f"{i // 8:032x}", index=i % 8, task_id="t", turns=(turn,)))
    return out


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__)
    ask.add_argument("--steps", type=int, default=6, help="steps of a round")
    ask.add_argument("--rounds", type=int, default=3, help="rounds of each way")
    ask.add_argument("--model", choices=SHAPES, default="30M")
    ask.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    ask.add_argument("--threads", type=int, default=1)
    ask.add_argument("--every", type=int, default=3, help="a checkpoint every so many steps")
    ask.add_argument("--groups", type=int, default=1)
    ask.add_argument("--prompt", type=int, default=40)
    ask.add_argument("--completion", type=int, default=120)
    ask.add_argument("--folder", default=None, help="where files are written (default: the temporary folder)")
    said = ask.parse_args()

    from transformers import Qwen3Config

    from core.episodes.samples import samples_of
    from core.training.model import build_lm
    from core.training.ranks import RankGroup
    from core.training.settings import TrainerSettings

    shape = SHAPES[said.model]
    with tempfile.TemporaryDirectory(dir=said.folder) as folder:
        build_lm(Qwen3Config(**shape, tie_word_embeddings=True), seed=0).save_pretrained(f"{folder}/model")
        half = said.device == "cuda"
        ranks = RankGroup(
            TrainerSettings(
                model=f"{folder}/model", dtype="bfloat16" if half else "float32", device=said.device, kl_coef=0.0,
                max_tokens_per_rank=16384 if half else 4096, threads=said.threads, compile=half, pack_multiple=0,
            )
        )  # fmt: skip
        batches = [episodes(said.groups, said.prompt, said.completion, shape["vocab_size"], s) for s in range(3)]

        def made(n: int):
            return [s for e in batches[n % 3] for s in samples_of(e, credit="turn", gamma=0.4)]

        def due(n: int) -> bool:
            return n % said.every == 0

        def serial() -> tuple[float, float]:
            """(wall seconds, seconds in updates) of a round."""
            started, updating = time.perf_counter(), 0.0
            for n in range(said.steps):
                batch = ranks.prepare(made(n))
                updating += trained(ranks, batch)
                ranks.publish(f"{folder}/serial/w", keep=2)
                if due(n):
                    ranks.save(Path(folder) / "serial/c")
            return time.perf_counter() - started, updating

        def beside() -> tuple[float, float]:
            """The same; what is still being written at the end is waited for, and counts."""
            started, updating = time.perf_counter(), 0.0
            with ThreadPoolExecutor(1) as packer, ThreadPoolExecutor(1) as publisher, ThreadPoolExecutor(1) as writer:
                prepare = lambda n: ranks.prepare(made(n))  # noqa: E731
                ahead = packer.submit(prepare, 0)
                publishing = writing = None
                for n in range(said.steps):
                    batch = ahead.result()
                    ahead = packer.submit(prepare, n + 1)
                    updating += trained(ranks, batch)
                    if publishing is not None:
                        publishing.result()
                    publishing = publisher.submit(ranks.take_weights().publish, f"{folder}/beside/w", 2)
                    if due(n):
                        if writing is not None:
                            writing.result()
                        writing = writer.submit(ranks.take_checkpoint().write, Path(folder) / "beside/c")
                for last in (publishing, writing):
                    if last is not None:
                        last.result()
            return time.perf_counter() - started, updating

        serial(), beside()  # allocators, pinned memory, compiled blocks
        rounds = [(serial(), beside()) for _ in range(said.rounds)]
        ranks.close()
    ways = {"serial": [s for s, _ in rounds], "beside": [b for _, b in rounds]}
    out = {"benchmark": "learner_overlap", "model": said.model, "device": said.device, "steps": said.steps,
           "checkpoint_every": said.every}  # fmt: skip
    for name, took in ways.items():
        out[f"step_s_{name}"] = round(statistics.median(wall for wall, _ in took) / said.steps, 3)
        out[f"update_s_{name}"] = round(statistics.median(update for _, update in took) / said.steps, 3)
        out[f"share_{name}"] = round(statistics.median(1 - update / wall for wall, update in took), 4)
    out["speedup"] = round(out["step_s_serial"] / out["step_s_beside"], 3)
    print(json.dumps(out))


def trained(ranks, batch) -> float:
    started = time.perf_counter()
    assert ranks.step(batch)["applied"]
    return time.perf_counter() - started


if __name__ == "__main__":
    sys.exit(main())
