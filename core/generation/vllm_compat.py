"""Everything about vLLM that differs between 0.25 and 0.33, or is not its documented interface, in one place.

What is relied upon beyond the documented interface, and why:
- `AsyncLLM.add_request` instead of `generate`: it returns once the request is the engine's, so that at a pause every
  request is either known to the engine or held back by us, never in between;
- `output_processor.request_states` and the output queue: 0.25 does not say which weights sampled a token, so the tokens
  that stand at the pause are counted. `drain` makes that count exact: everything that the engine core sent before it
  answered the pause has then been processed. Newer versions report spans of weight versions with the completion;
- `scheduler_cls` and `RequestOutput.kv_transfer_params`: log-probs leave the core in one piece (`vllm_scheduler`).

vLLM is imported inside functions only: this module can be imported without it.
"""

import asyncio
import contextlib
import inspect
import os
import time
from typing import Any

import numpy as np

SUPPORTED = ((0, 25), (0, 34))
"""From, below."""
OWNER = "KERNELMILL_ENGINE_OWNER"
"""Names the process that started the engine; its workers end when that is gone (`vllm_worker`)."""
LOGPROBS = "kernelmill_logprobs"
"""Key under which a finished request's log-probs come out of the core (`vllm_scheduler`)."""
_POLL_S = 0.001


def version() -> tuple[int, int]:
    """(major, minor) of the installed vLLM. Raises ImportError with one line when there is none, or another one."""
    try:
        import vllm
    except ImportError as error:
        raise ImportError(
            f"rollout.engine = 'vllm' needs vLLM, which can't be imported ({error}): "
            f"make extra-vllm, or set rollout.engine = 'transformers'"
        ) from error
    found = tuple(int(part) for part in vllm.__version__.split("+")[0].split(".")[:2])
    if not SUPPORTED[0] <= found < SUPPORTED[1]:
        low, high = (".".join(map(str, bound)) for bound in SUPPORTED)
        raise ImportError(f"vLLM {vllm.__version__} is installed; wanted >= {low} and < {high}")
    return found  # type: ignore[return-value]


def build(options: dict[str, Any]) -> Any:
    """An AsyncLLM; `options` are fields of AsyncEngineArgs. Blocks while the model loads (seconds to minutes)."""
    version()
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    # FlashInfer's sampler does not give the log-probs of the distribution that it samples from, and need not be there.
    os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    # A fork of this process would take its threads' locks and its connections with it.
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    os.environ[OWNER] = str(os.getpid())
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    return AsyncLLM.from_engine_args(AsyncEngineArgs(**options))


def dead_errors() -> tuple[type[Exception], ...]:
    """What is raised by calls on an engine whose core process is gone."""
    from vllm.v1.engine.exceptions import EngineDeadError

    return (EngineDeadError,)


def sampling_params(
    *, max_tokens: int, temperature: float, top_k: int, top_p: float, stop_ids: tuple[int, ...], seed: int | None
) -> Any:
    """Ids and the log-prob of each sampled id, once, at the end; no text."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k if temperature else 0,
        top_p=top_p if temperature else 1.0,
        stop_token_ids=list(stop_ids),
        ignore_eos=True,
        seed=seed,
        logprobs=0,
        flat_logprobs=True,
        detokenize=False,
        skip_special_tokens=False,
        skip_clone=True,  # made for one request
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


async def submit(engine: Any, request_id: str, prompt_ids: list[int], params: Any, salt: str) -> Any:
    """Hand a request in; returns its collector when the engine holds the request."""
    from vllm.inputs.engine import tokens_input

    return await engine.add_request(request_id, tokens_input(prompt_ids, cache_salt=salt), params)


async def collect(collector: Any) -> Any:
    """The finished output (vLLM's RequestOutput). Raises what the engine failed with."""
    while True:
        output = collector.get_nowait() or await collector.get()
        if output.finished:
            return output


async def abort(engine: Any, request_id: str) -> None:
    """By the name that the request was handed in with, whether or not that has ended. A dead engine has none."""
    with contextlib.suppress(*dead_errors()):
        await engine.abort(request_id)


def raise_if_dead(engine: Any) -> None:
    """Raises one of `dead_errors` when the core's process is known to be gone."""
    if engine.engine_core.resources.engine_dead:
        raise dead_errors()[0]()


def fail_requests(engine: Any, error: Exception) -> None:
    """Whoever waits for a request is told `error`; an engine that is shut down tells nobody anything."""
    engine.output_processor.propagate_error(error)


def kill(engine: Any) -> None:
    """End the engine's core as it stands; vLLM then finds it dead."""
    manager = engine.engine_core.resources.engine_manager
    for process in manager.processes if manager is not None else ():
        process.kill()


def logprobs(output: Any) -> np.ndarray:
    """Log-prob of each sampled token of a finished output, float32 [tokens]. Raises RuntimeError where some are
    missing. `vllm_scheduler` sends them in one piece; another one, named in `extra`, may send them vLLM's way."""
    completion = output.outputs[0]
    packed = (output.kv_transfer_params or {}).get(LOGPROBS)
    if packed is not None:
        found = np.frombuffer(packed, np.float32).copy()
    else:
        flat = completion.logprobs
        found = np.array([flat.logprobs[start] for start in flat.start_indices], np.float32)
    if len(found) != len(completion.token_ids):
        raise RuntimeError(f"vLLM sent {len(found)} log-probs for {len(completion.token_ids)} tokens")
    return found


def spans(completion: Any) -> list[tuple[str, int, int]] | None:
    """(weight version, first token, behind the last token), where vLLM reports them for the whole completion."""
    reported = getattr(completion, "weight_versions", None)
    if not reported or reported[-1].end != len(completion.token_ids) or reported[0].start != 0:
        return None
    return [(span.version, span.start, span.end) for span in reported]


def watch_outputs(engine: Any) -> None:
    """Prepare `drain` and `heard_at`. Called once per engine, before its first request: from then on the engine notes
    when its output handler stands waiting for the core, and when it last heard of it."""
    client = engine.engine_core
    original = client.get_output_async

    async def get_output_async() -> Any:
        engine.km_handler_waits = True
        outputs = await original()
        engine.km_handler_waits = False
        engine.km_heard_at = time.monotonic()
        return outputs

    engine.km_handler_waits = False
    engine.km_heard_at = time.monotonic()
    client.get_output_async = get_output_async


def heard_at(engine: Any) -> float:
    """When (time.monotonic) the core last sent outputs; it does at each step, also of requests that go on."""
    return engine.km_heard_at


async def drain(engine: Any, timeout_s: float) -> None:
    """Return when every output that the engine core has sent so far was handed to its request. Raises TimeoutError."""
    if engine.output_handler is None:
        return  # no request yet
    deadline = time.monotonic() + timeout_s
    queue = engine.engine_core.outputs_queue
    while not (engine.km_handler_waits and queue.empty()):
        if engine.output_handler.done():
            return  # the engine failed; requests hear of it
        if time.monotonic() > deadline:
            raise TimeoutError(f"vLLM's output handler did not catch up within {timeout_s:g} s")
        await asyncio.sleep(_POLL_S)


def tokens_so_far(engine: Any) -> dict[str, int]:
    """Completion tokens of each unfinished request, by collector's id. Exact after `drain`."""
    return {
        request_id: state.detokenizer.num_output_tokens()
        for request_id, state in engine.output_processor.request_states.items()
        if state.detokenizer is not None
    }


async def finish_weight_update(engine: Any, weight_version: str) -> None:
    if "weight_version" in inspect.signature(engine.finish_weight_update).parameters:
        await engine.finish_weight_update(weight_version=weight_version)
    else:
        await engine.finish_weight_update()


async def name_weights(engine: Any, weight_version: str) -> None:
    """Tell an engine that just started what its weights are called, where it can report that."""
    if hasattr(engine, "update_weight_version"):
        await engine.update_weight_version(weight_version)
