"""How the vLLM engine is started: its settings, what vLLM is told, and the warm-up before the first request.

The warm-up samples a few tokens in every way that a rollout may ask for. vLLM compiles the kernels of the forward pass
when it starts, but those that sample and take log-probs when they are first needed, seconds in the middle of a rollout.
They are compiled by kind of request, not by their number; top-k and top-p have another kernel from 8 sequences on.
"""

import asyncio
import itertools
from typing import Any

import msgspec

from core.generation import vllm_compat as compat

_WARM_SEQUENCES = 10
_WARM_WAYS = (*itertools.product((1.0, 0.9), (0, 20), (1.0, 0.9)), (0.0, 0, 1.0))
"""(temperature, top-k, top-p)"""


class VLLMSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How vLLM runs. Deadlines are in seconds."""

    tensor_parallel: int = 1
    """Cards (or processes, on the CPU) that hold the model together."""
    gpu_memory: float = 0.85
    """Share of the card that vLLM takes for weights and cache; less where the card is shared."""
    cache_gb: float = 0.0
    """Size of the cache in GB (10^9 bytes) on each card; 0: what `gpu_memory` leaves. vLLM finds that out by watching
    the card's free memory while it starts, and fails when another process gives memory back meanwhile: say a size where
    the card is shared."""
    max_sequences: int = 256
    """Most sequences in one step; more wait their turn."""
    eager: bool = False
    """Skip compilation and CUDA graphs: starts sooner, decodes slower."""
    prefix_cache: bool = True
    restarts: int = 3
    """How often a core that died is started again."""
    stage_timeout_s: float = 300.0
    """For receiving weights beside generation."""
    swap_timeout_s: float = 60.0
    """For everything while generation is paused."""
    silent_timeout_s: float = 60.0
    """A core that sends nothing for so long while requests run, and then gives no answer for as long, is ended and
    started again."""
    extra: dict[str, Any] = {}
    """More fields of vLLM's AsyncEngineArgs."""


def options(model: str, *, dtype: str, context_tokens: int, settings: VLLMSettings) -> dict[str, Any]:
    """Fields of vLLM's AsyncEngineArgs; `context_tokens` 0 takes the model's own limit."""
    told: dict[str, Any] = dict(
        model=model,
        skip_tokenizer_init=True,
        dtype=dtype,
        tensor_parallel_size=settings.tensor_parallel,
        gpu_memory_utilization=settings.gpu_memory,
        max_num_seqs=settings.max_sequences,
        enforce_eager=settings.eager,
        enable_prefix_caching=settings.prefix_cache,
        logprobs_mode="processed_logprobs",
        scheduler_cls="core.generation.vllm_scheduler.scheduler",
        worker_extension_cls="core.generation.vllm_worker.WorkerExtension",
        weight_transfer_config={"backend": "kernelmill"},
        disable_log_stats=True,
    )
    if context_tokens:
        told["max_model_len"] = context_tokens
    if settings.cache_gb:
        told["kv_cache_memory_bytes"] = int(settings.cache_gb * 1e9)
    return told | settings.extra


async def warm(core: Any, *, context_tokens: int, max_sequences: int) -> None:
    """Compile what sampling needs. Nothing of it is left in the prefix cache."""
    if context_tokens < 4:
        return

    async def one(number: int, temperature: float, top_k: int, top_p: float) -> None:
        params = compat.sampling_params(
            max_tokens=2, temperature=temperature, top_k=top_k, top_p=top_p, stop_ids=(), seed=number
        )
        name = f"warm-{number}-{temperature}-{top_k}-{top_p}"
        await compat.collect(await compat.submit(core, name, [0, 1], params, "warm"))

    for way in _WARM_WAYS:
        for together in {1, min(_WARM_SEQUENCES, max_sequences)}:
            # Not a TaskGroup: a core that dies in here is to be known by its error, as anywhere else.
            await asyncio.gather(*(one(number, *way) for number in range(together)))
