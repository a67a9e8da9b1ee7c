"""The vLLM engine under a rollout's load; one JSON line, within `--limit-s` seconds.

    python -m tests.benchmarks.rollout                  Qwen3-0.6B's shape, random weights, on a card
    python -m tests.benchmarks.rollout --tiny --cpu     the same on a CPU build of vLLM, to see that it runs

- tokens/s of the engine's path (ids, log-probs of the distribution sampled from, versions, seeds) against bare vLLM:
  the same prompts and lengths in the same call, nothing but ids asked for, on the same core, in turn; the prefix cache
  is emptied before each, a short run of either goes before, unmeasured. `share` is the median of the repeats' shares,
  ours by the bare run beside it. `--bare both` adds vLLM's offline `LLM.generate`, alone on the card, if time is left.
- per transport: seconds from tensors in the learner's hands to a fingerprint that is the learner's, per GB; seconds
  that generation stood still. Updates land under load.
- share of time in which the engine had nothing to run while episodes wait for verdicts. Verdict times are drawn
  uniformly from `--verdict-s`.

Short parts come first, so that the limit cuts the long one: idle share, transports, tokens/s, whose figures stand
after each repeat. Each is told on stderr as soon as it stands; one that fails is told in `failed` and keeps none of the
others from being measured; what the limit (or a SIGTERM) cuts off is named in `cut`.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import torch

from core.generation.engine import Sampling
from core.generation.errors import EngineStopped
from core.generation.vllm_engine import VLLMEngine, VLLMSettings
from core.weights import filesystem, ipc, nccl
from tests.gpu.bytecode import compile_missing
from tests.gpu.fast_folder import in_memory
from tests.gpu.random_policy import SHAPES, make_policy
from tests.gpu.told import Told

BARS = {"share": 0.9, "paused_s": 0.3, "idle_share": 0.05}
MAX_SEQUENCES = 256


def with_bars(found: dict[str, Any]) -> dict[str, Any]:
    paused = [part["paused_s"] for part in found.get("updates", {}).values() if isinstance(part, dict)]
    reached = {
        "share": found["share"] >= BARS["share"] if "share" in found else None,
        "paused_s": max(paused) <= BARS["paused_s"] if paused else None,
        "idle_share": found["idle"]["idle_share"] <= BARS["idle_share"] if "idle" in found else None,
    }
    return {"benchmark": "rollout", **found, "bars": BARS, "reached": reached}


def prompts(args: argparse.Namespace, seed: int) -> list[list[int]]:
    draw = random.Random(seed)
    vocabulary = SHAPES[args.shape]["vocab_size"]
    return [[draw.randrange(4, vocabulary) for _ in range(args.prompt)] for _ in range(args.requests)]


def lengths(args: argparse.Namespace) -> list[int]:
    draw = random.Random(1)
    return [draw.randint(args.completion // 2, args.completion * 3 // 2) for _ in range(args.requests)]


async def forget_prefixes(engine: VLLMEngine) -> None:
    for _ in range(100):  # blocks of the requests that just ended are given back a little later
        if await engine._core.reset_prefix_cache():
            return
        await asyncio.sleep(0.02)
    raise SystemExit("the prefix cache could not be emptied")


async def ours(engine: VLLMEngine, args: argparse.Namespace, seed: int) -> float:
    await forget_prefixes(engine)

    async def one(number: int, prompt: list[int], tokens: int) -> int:
        done = await engine.generate(prompt, Sampling(max_new_tokens=tokens, seed=number))
        assert len(done.ids) == len(done.logprobs) == len(done.versions) == tokens
        return tokens

    asked = list(zip(prompts(args, seed), lengths(args), strict=True))
    began = time.perf_counter()
    made = await asyncio.gather(*(one(number, *request) for number, request in enumerate(asked)))
    return sum(made) / (time.perf_counter() - began)


async def bare(engine: VLLMEngine, args: argparse.Namespace, seed: int) -> float:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    await forget_prefixes(engine)
    core = engine._core

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


def bare_llm(folder: str, args: argparse.Namespace) -> None:
    """vLLM's offline path, in a process of its own; prints its best tokens/s."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=folder, skip_tokenizer_init=True, dtype=args.dtype, max_model_len=args.context,
        max_num_seqs=MAX_SEQUENCES, gpu_memory_utilization=args.gpu_memory, enforce_eager=args.eager,
    )  # fmt: skip
    rates = []
    for seed in range(args.repeats + 1):
        asked = [{"prompt_token_ids": prompt} for prompt in prompts(args, 10 + seed)]
        params = [
            SamplingParams(max_tokens=n, temperature=1.0, ignore_eos=True, detokenize=False) for n in lengths(args)
        ]
        began = time.perf_counter()
        made = llm.generate(asked, params, use_tqdm=False)
        rates.append(sum(len(m.outputs[0].token_ids) for m in made) / (time.perf_counter() - began))
    print(json.dumps({"bare_llm_tokens_per_s": round(max(rates), 1)}), flush=True)


def run_bare_llm(folder: Path, report: Told) -> float | None:
    """None when it was not over in time."""
    words = [sys.executable, "-m", "tests.benchmarks.rollout", *sys.argv[1:], "--llm-folder", str(folder)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        told, _ = process.communicate(timeout=max(1.0, report.left_s - 5))
        return float(json.loads(told.strip().splitlines()[-1])["bare_llm_tokens_per_s"])
    except subprocess.TimeoutExpired:
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


async def updates(
    engine: VLLMEngine, args: argparse.Namespace, weights: dict[str, torch.Tensor], folder: Path, report: Told
) -> None:
    """Every transport, `--updates` times each, under load."""
    stop = asyncio.Event()
    size_gb = sum(tensor.numel() * tensor.element_size() for tensor in weights.values()) / 1e9
    report.add(updates={"gb": round(size_gb, 4)})

    async def load(number: int) -> None:
        draw = random.Random(number)
        while not stop.is_set():
            prompt = [draw.randrange(4, 500) for _ in range(args.prompt)]
            await engine.generate(prompt, Sampling(max_new_tokens=args.completion))

    version = 1

    def changed() -> list[tuple[str, torch.Tensor]]:
        return [(name, tensor + 0.001 * version) for name, tensor in weights.items()]

    async def measure(name: str, publish: Any) -> None:
        nonlocal version
        ready, still, publishing = [], [], []
        for _ in range(args.updates):
            version += 1
            tensors = await asyncio.to_thread(changed)
            began = time.perf_counter()
            source, fingerprint = await asyncio.to_thread(publish, version, tensors)
            publishing.append(time.perf_counter() - began)
            began = time.perf_counter()
            await engine.load_weights(source, version, fingerprint)
            ready.append(time.perf_counter() - began)
            still.append(engine.pauses[-1])
            await asyncio.sleep(args.between_s)
        whole = statistics.median(a + b for a, b in zip(publishing, ready, strict=True))
        report.add(updates={name: {
            "paused_s": round(max(still), 4),
            "paused_s_all": [round(s, 4) for s in still],
            "ready_s_all": [round(s, 4) for s in ready],
            "publish_s_all": [round(s, 4) for s in publishing],
            "s_per_gb": round(whole / size_gb, 4),
            "receive_s_per_gb": round(statistics.median(ready) / size_gb, 4),
        }})  # fmt: skip

    def to_folder(version: int, tensors: list[tuple[str, torch.Tensor]]) -> tuple[str, str]:
        on_host = ((name, tensor.cpu()) for name, tensor in tensors)
        manifest = filesystem.publish(folder / "weights", version, on_host, keep=1)
        return str(filesystem.version_folder(folder / "weights", version)), manifest.fingerprint

    running = [asyncio.create_task(load(number)) for number in range(args.in_flight)]

    async def over_a_group() -> None:
        name, device = ("gloo", torch.device("cpu")) if args.cpu else ("nccl", torch.device("cuda:1"))
        sender = nccl.Sender("127.0.0.1", device=device, join_s=0.02)
        try:
            await measure(name, lambda v, t: _named(sender.offer(v, t)))
            if sender.failures:
                raise RuntimeError(f"hand-over failed: {sender.failures[0]}")
        finally:
            await asyncio.to_thread(sender.close)

    async def by_ipc() -> None:
        publisher = ipc.Publisher(folder / "ipc", device=torch.device("cuda:0"))
        await measure("ipc", lambda v, t: _named(publisher.publish(v, t)))

    try:
        await asyncio.sleep(args.between_s)
        if args.cpu or torch.cuda.device_count() > 1:
            await part("nccl", over_a_group(), report)
        else:
            report.add(updates={"nccl": "wants two cards, here is one"})
        if not args.cpu:
            await part("ipc", by_ipc(), report)
        await part("filesystem", measure("filesystem", to_folder), report)
        report.add(updates={"spans_differed": engine.spans_differed})
    finally:
        stop.set()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def part(name: str, work: Awaitable[None], report: Told) -> None:
    """One that fails is told, and the next goes on; not so with an engine that ended."""
    try:
        await work
    except EngineStopped:
        raise
    except Exception as error:
        report.add(failed={name: f"{type(error).__name__}: {error}"})


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
    for failed in [task for task in running if task.done()]:
        failed.result()  # fewer episodes than were asked for give no figure
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


async def rates(engine: VLLMEngine, args: argparse.Namespace, report: Told) -> None:
    """Ours and bare in turn, each pair with the same prompts."""
    made: dict[str, list[float]] = {"ours": [], "bare": []}
    calls = [("bare", bare), ("ours", ours)]
    short = argparse.Namespace(**{**vars(args), "completion": max(args.completion // 4, 8)})
    report.add(unmeasured={name: round(await call(engine, short, 1), 1) for name, call in calls})
    for repeat in range(args.repeats):
        for name, call in calls if repeat % 2 == 0 else calls[::-1]:
            made[name].append(await call(engine, args, 10 + repeat))
        shares = [ours_rate / bare_rate for ours_rate, bare_rate in zip(made["ours"], made["bare"], strict=True)]
        report.add(
            tokens_per_s=round(statistics.median(made["ours"]), 1),
            tokens_per_s_all=[round(rate, 1) for rate in made["ours"]],
            bare_tokens_per_s=round(statistics.median(made["bare"]), 1),
            bare_tokens_per_s_all=[round(rate, 1) for rate in made["bare"]],
            share=round(statistics.median(shares), 4),
            shares=[round(share, 4) for share in shares],
        )


async def measure(args: argparse.Namespace, folder: Path, report: Told) -> None:
    made = await asyncio.to_thread(
        make_policy, folder / "policy", args.shape, getattr(torch, args.dtype), "cpu" if args.cpu else "cuda"
    )  # fmt: skip
    began = time.perf_counter()
    engine = VLLMEngine(
        str(folder / "policy"), dtype=args.dtype, context_tokens=args.context,
        settings=VLLMSettings(eager=args.eager, gpu_memory=args.gpu_memory, max_sequences=MAX_SEQUENCES),
    )  # fmt: skip
    report.add(made_policy=True)
    try:
        await engine.start()
        report.add(start_s=round(time.perf_counter() - began, 1), started_s=engine.started_s)
        report.add(idle=await idle_share(engine, args))
        await updates(engine, args, made, folder, report)
        await rates(engine, args, report)
    finally:
        await engine.stop()
    if args.bare == "both":
        made.clear()
        if not args.cpu:
            torch.cuda.empty_cache()
        if found := await asyncio.to_thread(run_bare_llm, folder / "policy", report):
            report.add(
                bare_llm_tokens_per_s=found, share_of_llm=round(report.found.get("tokens_per_s", 0.0) / found, 4)
            )  # fmt: skip
        else:
            report.add(cut="bare LLM.generate: not over in time")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="a model of 0.3 M parameters and a short load")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--limit-s", type=float, default=212.0)
    parser.add_argument("--requests", type=int, default=0, help="0: 256, tiny 16")
    parser.add_argument("--prompt", type=int, default=0, help="tokens; 0: 512, tiny 32")
    parser.add_argument("--completion", type=int, default=0, help="mean tokens; 0: 512, tiny 32")
    parser.add_argument("--in-flight", type=int, default=0, help="episodes; 0: 64, tiny 8")
    parser.add_argument("--updates", type=int, default=3, help="per transport")
    parser.add_argument("--between-s", type=float, default=0.5, help="between two updates")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--idle-window-s", type=float, default=8.0)
    parser.add_argument("--verdict-s", type=float, nargs=2, default=(0.3, 3.0))
    parser.add_argument("--gpu-memory", type=float, default=0.6)
    parser.add_argument("--eager", action="store_true", help="no CUDA graphs")
    parser.add_argument("--bare", choices=("core", "both"), default="core")
    parser.add_argument("--llm-folder", default="", help=argparse.SUPPRESS)
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
    os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if args.llm_folder:
        bare_llm(args.llm_folder, args)
        return
    report = Told(args.limit_s, line=with_bars)
    folder = Path(tempfile.mkdtemp(prefix="rollout-", dir=in_memory(8.0)))
    report.at_end(lambda: shutil.rmtree(folder, ignore_errors=True))
    try:
        bytecode_s = compile_missing()
        import vllm

        report.add(
            bytecode_s=round(bytecode_s, 1),
            device="cpu" if args.cpu else torch.cuda.get_device_name(0), vllm=vllm.__version__, torch=torch.__version__,
            shape=args.shape, requests=args.requests, prompt=args.prompt, completion=args.completion,
            in_flight=args.in_flight, folder=str(folder.parent),
        )  # fmt: skip
        asyncio.run(measure(args, folder, report))
    except BaseException as error:
        report.add(cut=f"{type(error).__name__}: {error}")
        raise
    finally:
        report.finish()


if __name__ == "__main__":
    main()
