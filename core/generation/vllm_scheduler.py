"""What runs inside vLLM's core: log-probs leave it once, with the request's end, not with every token.

vLLM's own way wraps the log-prob of each token of each request into three arrays, which the core encodes and the
front end decodes step by step: with hundreds of sequences that takes more of both processes' time than the tokens do.
A rollout reads them at the end only, so they are kept here as 4 bytes a token (`kept_logprobs`) and leave in one piece.
A step in which each request samples one token, as nearly all do, is taken in without a loop over the requests that
does more than look names up.

Requests that want anything else (other tokens' log-probs, outputs before the end) get them as vLLM sends them.

`scheduler` is named in `scheduler_cls`, which the core calls; it adds to the scheduler that vLLM would have taken.
The pieces travel in `kv_transfer_params`, which the front end hands to the request's caller as it is.
"""

from typing import Any

import numpy as np

from core.generation.kept_logprobs import KeptLogprobs
from core.generation.vllm_compat import LOGPROBS


def scheduler(*, vllm_config: Any, **options: Any) -> Any:
    """vLLM's scheduler for this config, with log-probs kept to the end."""
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    base: Any = AsyncScheduler if vllm_config.scheduler_config.async_scheduling else Scheduler
    return keeping(base)(vllm_config=vllm_config, **options)


def keeping(base: Any) -> Any:
    """The class `base` with log-probs kept to the end."""
    from vllm.sampling_params import RequestOutputKind

    class KeepsLogprobs(base):
        def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
            logprobs = model_runner_output.logprobs
            if logprobs is None:
                return super().update_from_output(scheduler_output, model_runner_output)
            model_runner_output.logprobs = None  # nothing is cut out of it for each request
            requests = dict(self.requests)  # those that end now are gone from it afterwards
            made = super().update_from_output(scheduler_output, model_runner_output)
            kept = self.__dict__.setdefault("km_kept", KeptLogprobs())
            for client in made.values():
                _take_in(kept, client.outputs, logprobs, model_runner_output.req_id_to_index, requests)
            return made

    def _take_in(kept: KeptLogprobs, outputs: list[Any], logprobs: Any, rows: dict[str, int], requests: Any) -> None:
        if not _each_one(kept, outputs, logprobs, rows):
            for output in outputs:
                _one(kept, output, logprobs, rows, requests)
        for output in outputs:
            if output.finish_reason is not None and output.request_id in kept:
                piece = {LOGPROBS: kept.take(output.request_id)}
                output.kv_transfer_params = {**(output.kv_transfer_params or {}), **piece}

    def _each_one(kept: KeptLogprobs, outputs: list[Any], logprobs: Any, rows: dict[str, int]) -> bool:
        """Take in a token of each request, if all of them are kept and have one; else nothing."""
        several = [len(output.new_token_ids) for output in outputs].count(1) != len(outputs)
        if several or logprobs.cu_num_generated_tokens is not None:
            return False
        names = [output.request_id for output in outputs]
        try:
            chosen = np.array(list(map(rows.__getitem__, names)), np.int64)
            kept.add_each(names, logprobs.logprobs[chosen, 0])  # the sampled token's comes first
        except KeyError:  # a new one, one that wants others' log-probs too, or one that was not in this step
            return False
        return True

    def _one(kept: KeptLogprobs, output: Any, logprobs: Any, rows: dict[str, int], requests: Any) -> None:
        name, count = output.request_id, len(output.new_token_ids)
        request, row = requests.get(name), rows.get(name)
        params = request.sampling_params if request is not None else None
        if row is None or params is None or params.num_logprobs is None:
            return
        if params.num_logprobs or params.output_kind != RequestOutputKind.FINAL_ONLY:
            output.new_logprobs = logprobs.slice_request(row, count)
            return
        if name not in kept:
            kept.begin(name, requests.keys())
        first_rows = logprobs.cu_num_generated_tokens
        first = row if first_rows is None else first_rows[row]
        kept.add(name, np.asarray(logprobs.logprobs[first : first + count, 0], np.float32))

    return KeepsLogprobs
