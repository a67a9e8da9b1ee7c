"""The vLLM engine under a rollout's load; one JSON line.

    python -m tests.benchmarks.rollout                  Qwen3-0.6B's shape, random weights, on a card
    python -m tests.benchmarks.rollout --tiny --cpu     the same on a CPU build of vLLM, to see that it runs

- tokens/s of the engine's path (ids, log-probs of the distribution sampled from, versions) against bare vLLM: equal
  lengths, other prompts of the same length (nothing comes from the prefix cache), nothing but ids asked for, on the
  same core, in turn. `--bare llm` adds vLLM's offline `LLM.generate` in a process of its own before.
- per transport: seconds from asking for an update to its fingerprint, per GB; seconds that generation stood still.
  Updates land under load; every fingerprint is compared with the learner's.
- share of time in which the engine had nothing to run while episodes wait for verdicts. Verdict times are drawn
  uniformly from `--verdict-s`.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from core.generation.engine import Sampling
from core.generation.vllm_engine import VLLMEngine, VLLMSettings
from core.weights import filesystem, ipc, nccl

SHAPES = {
    "tiny": dict(vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, head_dim=32, max_position_embeddings=4096),
    "0.6b": dict(vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28,
                 num_attention_heads=16, num_key_value_heads=8, head_dim=128, max_position_embeddings=40960),
}  # fmt: skip


def make_policy(folder: Path, shape: str, dtype: torch.dtype, device: str) -> dict[str, torch.Tensor]:
    """Random weights, saved as a model's folder; returns them by name."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(**SHAPES[shape], tie_word_embeddings=True, rope_theta=1e6, dtype=dtype)  # type: ignore[arg-type]
    with torch.device(device):
        model = Qwen3ForCausalLM(config).to(dtype)
    model.save_pretrained(folder)
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def prompts(args: argparse.Namespace, seed: int) -> list[list[int]]:
    draw = random.Random(seed)
    vocabulary = SHAPES[args.shape]["vocab_size"]
    return [[draw.randrange(4, vocabulary) for _ in range(args.prompt)] for _ in range(args.requests)]


def lengths(args: argparse.Namespace) -> list[int]:
    draw = random.Random(1)
    return [draw.randint(args.completion // 2, args.completion * 3 // 2) for _ in range(args.requests)]


async def ours(engine: VLLMEngine, args: argparse.Namespace, seed: int) -> float:
    async def one(number: int, prompt: list[int], tokens: int) -> int:
        done = await engine.generate(prompt, Sampling(max_new_tokens=tokens, seed=number))
        assert len(done.ids) == len(done.logprobs) == len(done.versions) == tokens
        return tokens

    asked = list(zip(prompts(args, seed), lengths(args), strict=True))
    began = time.perf_counter()
    made = await asyncio.gather(*(one(number, *request) for number, request in enumerate(asked)))
    return sum(made) / (time.perf_counter() - began)


async def bare(core: Any, args: argparse.Namespace, seed: int) -> float:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    async def one(number: int, prompt: list[int], tokens: int) -> int:
        params = SamplingParams(
            max_tokens=tokens, temperature=1.0, ignore_eos=True, detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )  # fmt: skip
        async for output in core.generate({"prompt_token_ids": prompt}, params, f"bare-{seed}-{number}"):
            last = output
        return len(last.outputs[0].token_ids)

    asked = list(zip(prompts(args, seed), lengths(args), strict=True))
    began = time.perf_counter()
    made = await asyncio.gather(*(one(number, *request) for number, request in enumerate(asked)))
    return sum(made) / (time.perf_counter() - began)


def bare_llm(folder: str, args: argparse.Namespace, out: Any) -> None:
    """vLLM's offline path in a process of its own, which gives the card back when it ends."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=folder, skip_tokenizer_init=True, dtype=args.dtype, max_model_len=args.context, max_num_seqs=256,
        gpu_memory_utilization=args.gpu_memory, enforce_eager=args.eager,
    )  # fmt: skip
    rates = []
    for seed in (100, 101, 102):
        asked = [{"prompt_token_ids": prompt} for prompt in prompts(args, seed)]
        params = [
            SamplingParams(max_tokens=n, temperature=1.0, ignore_eos=True, detokenize=False) for n in lengths(args)
        ]
        began = time.perf_counter()
        made = llm.generate(asked, params, use_tqdm=False)
        rates.append(sum(len(m.outputs[0].token_ids) for m in made) / (time.perf_counter() - began))
    out.put(max(rates))


async def updates(
    engine: VLLMEngine, args: argparse.Namespace, weights: dict[str, torch.Tensor], folder: Path
) -> dict[str, Any]:
    """Every transport, `--updates` times each, under load."""
    found: dict[str, Any] = {}
    stop = asyncio.Event()
    size_gb = sum(tensor.numel() * tensor.element_size() for tensor in weights.values()) / 1e9

    async def load(number: int) -> None:
        draw = random.Random(number)
        while not stop.is_set():
            prompt = [draw.randrange(4, 500) for _ in range(args.prompt)]
            await engine.generate(prompt, Sampling(max_new_tokens=args.completion))

    version = 1

    def changed() -> list[tuple[str, torch.Tensor]]:
        return [(name, tensor + 0.001 * version) for name, tensor in weights.items()]

    async def measure(name: str, publish: Any, after: Any = lambda: None) -> None:
        nonlocal version
        ready, still, publishing = [], [], []
        for _ in range(args.updates):
            version += 1
            tensors = await asyncio.to_thread(changed)
            began = time.perf_counter()
            source, fingerprint = await asyncio.to_thread(publish, version, tensors)
            publishing.append(time.perf_counter() - began)
            began = time.perf_counter()
            got = await engine.load_weights(source, version)
            ready.append(time.perf_counter() - began)
            still.append(engine.pauses[-1])
            if got != fingerprint:
                raise SystemExit(f"{name}: the engine holds {got}, the learner published {fingerprint}")
            await asyncio.sleep(args.between_s)
        await asyncio.to_thread(after)
        found[name] = {
            "paused_s": round(max(still), 4),
            "paused_s_all": [round(s, 4) for s in still],
            "ready_s": round(statistics.median(ready), 4),
            "publish_s": round(statistics.median(publishing), 4),
            "s_per_gb": round(statistics.median(ready) / size_gb, 4),
        }

    def to_folder(version: int, tensors: list[tuple[str, torch.Tensor]]) -> tuple[str, str]:
        on_host = ((name, tensor.cpu()) for name, tensor in tensors)
        manifest = filesystem.publish(folder / "weights", version, on_host, keep=1)
        return str(filesystem.version_folder(folder / "weights", version)), manifest.fingerprint

    running = [asyncio.create_task(load(number)) for number in range(args.in_flight)]
    await asyncio.sleep(args.between_s)
    await measure("filesystem", to_folder)
    if not args.cpu:
        publisher = ipc.Publisher(folder / "ipc", device=torch.device("cuda:0"))
        await measure("ipc", lambda v, t: _named(publisher.publish(v, t)))
    if args.cpu or torch.cuda.device_count() > 1:
        device = torch.device("cpu" if args.cpu else "cuda:1")
        sender = nccl.Sender("127.0.0.1", device=device, join_s=0.02)
        await measure("gloo" if args.cpu else "nccl", lambda v, t: _named(sender.offer(v, t)), sender.close)
        if sender.failures:
            raise SystemExit(f"hand-over failed: {sender.failures[0]}")
    stop.set()
    await asyncio.gather(*running)
    return {"gb": round(size_gb, 4), "spans_differed": engine.spans_differed, **found}


def _named(published: Any) -> tuple[str, str]:
    source, manifest = published
    return source, manifest.fingerprint


async def idle_share(engine: VLLMEngine, args: argparse.Namespace) -> dict[str, float]:
    """Episodes of three turns, always `--in-flight` of them, each turn followed by a wait for its verdict."""
    draw = random.Random(2)
    stop = asyncio.Event()
    low, high = args.verdict_s
    turns = 0

    async def episodes() -> None:
        nonlocal turns
        while not stop.is_set():
            ids = [draw.randrange(4, 500) for _ in range(args.prompt)]
            for _ in range(3):
                tokens = draw.randint(args.completion // 2, args.completion * 3 // 2)
                done = await engine.generate(ids, Sampling(max_new_tokens=tokens))
                turns += 1
                if stop.is_set():
                    return
                await asyncio.sleep(draw.uniform(low, high))
                ids = [*ids, *done.ids.tolist(), *(draw.randrange(4, 500) for _ in range(64))]

    running = [asyncio.create_task(episodes()) for _ in range(args.in_flight)]
    await asyncio.sleep(high + 1)
    before, began, first = engine.gauges()["busy_s"], time.perf_counter(), turns
    await asyncio.sleep(args.idle_window_s)
    wall = time.perf_counter() - began
    busy, played = engine.gauges()["busy_s"] - before, turns - first
    stop.set()
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    return {
        "idle_share": round(1 - busy / wall, 4),
        "window_s": round(wall, 2),
        "turns_per_s": round(played / wall, 2),
        "verdict_mean_s": (low + high) / 2,
    }


async def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    weights = make_policy(
        folder / "policy", args.shape, getattr(torch, args.dtype), "cpu" if args.cpu else "cuda"
    )  # fmt: skip
    result: dict[str, Any] = {}
    if args.bare == "llm":
        context = multiprocessing.get_context("spawn")
        out = context.Queue()
        process = context.Process(target=bare_llm, args=(str(folder / "policy"), args, out))
        process.start()
        result["bare_llm_tokens_per_s"] = round(await asyncio.to_thread(out.get), 1)
        process.join()
    began = time.perf_counter()
    engine = VLLMEngine(
        str(folder / "policy"), dtype=args.dtype, context_tokens=args.context,
        settings=VLLMSettings(eager=args.eager, gpu_memory=args.gpu_memory, max_sequences=256),
    )  # fmt: skip
    await engine.start()
    result["start_s"] = round(time.perf_counter() - began, 1)
    try:
        rates: dict[str, list[float]] = {"ours": [], "bare": []}
        await ours(engine, args, 1)
        for repeat in range(args.repeats):
            rates["bare"].append(await bare(engine._core, args, 10 + repeat))
            rates["ours"].append(await ours(engine, args, 20 + repeat))
        result["tokens_per_s"] = round(statistics.median(rates["ours"]), 1)
        result["bare_tokens_per_s"] = round(statistics.median(rates["bare"]), 1)
        result["ratio"] = round(statistics.median(o / b for o, b in zip(rates["ours"], rates["bare"], strict=True)), 4)
        result["idle"] = await idle_share(engine, args)
        result["updates"] = await updates(engine, args, weights, folder)
    finally:
        await engine.stop()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="a model of 0.3 M parameters and a short load")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--requests", type=int, default=0, help="0: 256, tiny 16")
    parser.add_argument("--prompt", type=int, default=0, help="tokens; 0: 512, tiny 32")
    parser.add_argument("--completion", type=int, default=0, help="mean tokens; 0: 512, tiny 32")
    parser.add_argument("--in-flight", type=int, default=0, help="episodes; 0: 64, tiny 8")
    parser.add_argument("--updates", type=int, default=4, help="per transport")
    parser.add_argument("--between-s", type=float, default=0.5, help="between two updates")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--idle-window-s", type=float, default=15.0)
    parser.add_argument("--verdict-s", type=float, nargs=2, default=(0.3, 3.0))
    parser.add_argument("--gpu-memory", type=float, default=0.6)
    parser.add_argument("--eager", action="store_true", help="no CUDA graphs")
    parser.add_argument("--bare", choices=("core", "llm"), default="core")
    args = parser.parse_args()
    args.shape = "tiny" if args.tiny else "0.6b"
    args.dtype = "float32" if args.cpu else "bfloat16"
    args.eager = args.eager or args.cpu
    args.requests = args.requests or (16 if args.tiny else 256)
    args.prompt = args.prompt or (32 if args.tiny else 512)
    args.completion = args.completion or (32 if args.tiny else 512)
    args.in_flight = args.in_flight or (8 if args.tiny else 64)
    args.context = 2048 if args.tiny else 8192
    if args.cpu:
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="rollout-", dir=memory if memory.is_dir() else None))
    try:
        import vllm

        found = asyncio.run(measure(args, folder))
        device = "cpu" if args.cpu else torch.cuda.get_device_name(0)
        print(json.dumps({"benchmark": "rollout", "device": device, "vllm": vllm.__version__, "shape": args.shape,
                          "requests": args.requests, "prompt": args.prompt, "completion": args.completion,
                          "in_flight": args.in_flight, **found}))  # fmt: skip
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
