"""What the scheduler keeps, over a base that makes up steps of every kind: a token each, several, none, strangers."""

import random
from types import SimpleNamespace

import numpy as np
from vllm.sampling_params import RequestOutputKind

from core.generation.vllm_compat import LOGPROBS
from core.generation.vllm_scheduler import keeping

KINDS = {
    "end": (0, RequestOutputKind.FINAL_ONLY), "top": (2, RequestOutputKind.FINAL_ONLY),
    "stream": (0, RequestOutputKind.DELTA), "none": (None, RequestOutputKind.FINAL_ONLY),
}  # fmt: skip


class Base:
    """Knows `requests`; what a step made is given to it."""

    def __init__(self):
        self.requests, self.made, self.ended = {}, [], []

    def update_from_output(self, scheduler_output, model_runner_output):
        assert model_runner_output.logprobs is None
        for name in self.ended:
            self.requests.pop(name, None)
        return {client: SimpleNamespace(outputs=outputs) for client, outputs in enumerate(self.made)}


class Logprobs:
    def __init__(self, rows, first_rows):
        self.logprobs, self.cu_num_generated_tokens = rows, first_rows

    def slice_request(self, row, count):
        first = row if self.cu_num_generated_tokens is None else self.cu_num_generated_tokens[row]
        return self.logprobs[first : first + count]


def test_whatever_a_step_brings_each_gets_its_own():
    draw = random.Random(3)
    scheduler = keeping(Base)()
    wanted, finished, number = {}, 0, 0
    for step in range(400):
        plain = draw.random() < 0.6  # as rollouts are: all of one kind, a token each
        for _ in range(draw.randrange(4)):
            kind = "end" if plain and draw.random() < 0.95 else draw.choice(list(KINDS))
            count, output_kind = KINDS[kind]
            params = SimpleNamespace(num_logprobs=count, output_kind=output_kind)
            scheduler.requests[f"{kind}-{number}"] = SimpleNamespace(sampling_params=params)
            wanted[f"{kind}-{number}"] = []
            number += 1
        names = list(scheduler.requests)
        draw.shuffle(names)
        speculative = not plain and draw.random() < 0.5
        counts = {name: draw.randrange(4) if speculative else int(plain or draw.random() < 0.8) for name in names}
        starts = np.cumsum([0, *(max(1, counts[name]) for name in names)]).tolist()
        table = np.array([[draw.uniform(-9, 0)] * 3 for _ in range(starts[-1] + 1)], np.float32)
        first_rows = starts[:-1] if speculative else None
        outputs, scheduler.ended = [], []
        for row, name in enumerate(names):
            if not counts[name] and draw.random() < 0.5:
                continue
            over = draw.random() < 0.05
            outputs.append(SimpleNamespace(
                request_id=name, new_token_ids=[7] * counts[name], new_logprobs=None, kv_transfer_params=None,
                finish_reason="stop" if over else None,
            ))  # fmt: skip
            first = starts[row] if speculative else row
            wanted[name] += table[first : first + counts[name], 0].tolist()
            scheduler.ended += [name] * over
        if draw.random() < 0.2:  # one that the core ended beside the step
            outputs.append(SimpleNamespace(
                request_id=f"gone-{step}", new_token_ids=[], new_logprobs=None, kv_transfer_params=None,
                finish_reason="abort",
            ))  # fmt: skip
        if names and draw.random() < 0.2:
            scheduler.ended.append(draw.choice(names))  # aborted: it may have an output of this step all the same
        draw.shuffle(outputs)
        half = len(outputs) // 2
        scheduler.made = [outputs[:half], outputs[half:]]
        rows = {name: row for row, name in enumerate(names)}
        found = scheduler.update_from_output(
            None, SimpleNamespace(logprobs=Logprobs(table, first_rows), req_id_to_index=rows)
        )
        for client in found.values():
            for output in client.outputs:
                name, kind = output.request_id, output.request_id.split("-")[0]
                if kind == "end" and output.finish_reason:
                    finished += 1
                    got = np.frombuffer(output.kv_transfer_params[LOGPROBS], np.float32)
                    assert got.tolist() == wanted.pop(name)
                else:
                    assert output.kv_transfer_params is None
                told = len(output.new_logprobs) if output.new_logprobs is not None else None
                assert told == (len(output.new_token_ids) if kind in ("top", "stream") else None)
    assert finished > 50
