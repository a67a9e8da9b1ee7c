"""What runs inside vLLM's core: log-probs leave it once, with the request's end, not with every token.

vLLM's own way wraps the log-prob of each token of each request into three arrays, which the core encodes and the
front end decodes step by step: with hundreds of sequences that takes more of both processes' time than the tokens do.
A rollout reads them at the end only, so they are kept here as 4 bytes a token and leave in one piece.

Requests that want anything else (other tokens' log-probs, outputs before the end) get them as vLLM sends them.

`scheduler` is named in `scheduler_cls`, which the core calls; it adds to the scheduler that vLLM would have taken.
The pieces travel in `kv_transfer_params`, which the front end hands to the request's caller as it is.
"""

from array import array
from typing import Any

from core.generation.vllm_compat import LOGPROBS


def scheduler(*, vllm_config: Any, **options: Any) -> Any:
    """vLLM's scheduler for this config, with log-probs kept to the end."""
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    base: Any = AsyncScheduler if vllm_config.scheduler_config.async_scheduling else Scheduler

    class KeepsLogprobs(base):
        def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
            logprobs = model_runner_output.logprobs
            if logprobs is None:
                return super().update_from_output(scheduler_output, model_runner_output)
            model_runner_output.logprobs = None  # nothing is cut out of it for each request
            requests = dict(self.requests)  # those that end now are gone from it afterwards
            made = super().update_from_output(scheduler_output, model_runner_output)
            rows, first_rows = model_runner_output.req_id_to_index, logprobs.cu_num_generated_tokens
            sampled = logprobs.logprobs[:, 0].tolist()  # the sampled token's comes first
            for client in made.values():
                for output in client.outputs:
                    request, row = requests.get(output.request_id), rows.get(output.request_id)
                    params = request.sampling_params if request is not None else None
                    if row is None or params is None or params.num_logprobs is None:
                        continue
                    count = len(output.new_token_ids)
                    if params.num_logprobs or params.output_kind != RequestOutputKind.FINAL_ONLY:
                        output.new_logprobs = logprobs.slice_request(row, count)
                        continue
                    first = row if first_rows is None else first_rows[row]
                    # On the request, so that it goes when that goes, however it ends.
                    kept = request.__dict__.setdefault("km_logprobs", array("f"))
                    kept.extend(sampled[first : first + count])
                    if output.finish_reason is not None:
                        output.kv_transfer_params = {**(output.kv_transfer_params or {}), LOGPROBS: kept.tobytes()}
            return made

    return KeepsLogprobs(vllm_config=vllm_config, **options)
