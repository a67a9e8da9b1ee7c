"""One configuration of the learner's benchmark, measured in this process: a JSON line for each shape as it stands.

    python -m tests.benchmarks.learner_run FOLDER --model 0.6b --shapes 1x16384,8x2048 --fields '{"compile": true}'

A step is given a batch that a thread prepared (planned and packed) while the step before ran, as the learner's actor
does. What a step had to wait for that thread is `exposed_s` and counts in `tokens_per_s`, not in `mfu`; `plan_s` and
`pack_s` are what is left of it in the step. A shape in which compiled blocks were not finite (`compile_retry`) is an
error, not a figure.

Run by `tests.benchmarks.learner`. Lines: {"shape", figures ...}, with --profile {"shape", "profile": ...} behind each.
"""

import argparse
import json
import os
import statistics
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from tests.benchmarks.learner_shapes import MODELS, PROMPT_TOKENS, advantages, parse, token_ids


def samples(shape: str, vocab: int) -> list:
    import numpy as np

    from core.episodes.samples import Sample

    out = []
    for i, (ids, ret) in enumerate(zip(token_ids(shape, vocab), advantages(len(parse(shape))), strict=True)):
        mask = np.r_[np.zeros(PROMPT_TOKENS, np.uint8), np.ones(len(ids) - PROMPT_TOKENS, np.uint8)]
        out.append(
            Sample(
                group_id="g", index=i, turn=0, role="generator", mask=mask, ids=ids, ret=ret,
                logprobs=np.where(mask, -np.log(vocab), 0).astype(np.float32),
                versions=np.where(mask, 0, -1).astype(np.int32),
            )
        )  # fmt: skip
    return out


def graphs() -> dict:
    """What torch.compile has done so far in this process."""
    from torch._dynamo.utils import counters

    return {
        "graphs": counters["stats"].get("unique_graphs", 0),
        "graph_breaks": sum(counters["graph_break"].values()),
    }


def say(line: dict) -> None:
    print(json.dumps(line), flush=True)


def stepped(ranks, batch: list, steps: int) -> Iterator[dict]:
    """Numbers of each step, with `exposed_s`; of the first one it is all of preparing."""
    with ThreadPoolExecutor(1) as packer:
        ahead = packer.submit(ranks.prepare, batch)
        for n in range(steps):
            began = time.perf_counter()
            ready = ahead.result()
            exposed_s = time.perf_counter() - began
            if n + 1 < steps:
                ahead = packer.submit(ranks.prepare, batch)
            yield ranks.step(ready) | {"exposed_s": exposed_s}


def measure(ranks, shape: str, said: argparse.Namespace) -> dict:
    """Figures of the median step at a shape; gradient norm and entropy are the first measured step's, whichever was the
    median, so that those of configurations can be compared."""
    batch = samples(shape, MODELS[said.model]["vocab_size"])
    began = time.perf_counter()
    run = stepped(ranks, batch, said.warmup + said.steps)
    warmup = [next(run) for _ in range(said.warmup)]
    warmup_s = time.perf_counter() - began
    steps = list(run)
    refused = sum(s["applied"] != 1.0 for s in warmup)
    if any(s.get("compile_retry") for s in warmup + steps):
        raise RuntimeError("compiled blocks gave numbers that are not finite")
    taken = [s["step_s"] + s["exposed_s"] for s in steps]
    middle = statistics.median_low(taken)
    numbers = steps[taken.index(middle)]
    if numbers["applied"] != 1.0:
        raise RuntimeError(f"the step was refused: {[n for n in numbers if n.startswith('refused')]}")
    parts = {n: round(numbers[n], 4) for n in ("exposed_s", "plan_s", "pack_s", "forward_backward_s", "optimizer_s")}
    return {
        "tokens_per_s": round(numbers["tokens_per_s"] * numbers["step_s"] / middle),
        "mfu": round(numbers["mfu"], 4) if "mfu" in numbers else None,
        "peak_gib": round(max(s["peak_gib"] for s in steps), 2) if "peak_gib" in numbers else None,
        "step_s": round(middle, 4), **parts, "steps_s": [round(s, 4) for s in taken],
        "warmup_s": round(warmup_s, 1), "warmup_refused": refused, "grad_norm": round(steps[0]["grad_norm"], 5),
        "entropy": round(steps[0]["entropy"], 4), **graphs(),
    }  # fmt: skip


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("folder")
    ask.add_argument("--model", choices=tuple(MODELS), required=True)
    ask.add_argument("--device", default="cuda")
    ask.add_argument("--shapes", required=True)
    ask.add_argument("--fields", type=json.loads, default={}, help="settings of the trainer, as JSON")
    ask.add_argument("--ranks", type=int, default=1)
    ask.add_argument("--steps", type=int, default=4)
    ask.add_argument("--warmup", type=int, default=2)
    ask.add_argument("--profile", action="store_true")
    said = ask.parse_args()

    from core.training import flash
    from core.training.ranks import RankGroup
    from core.training.settings import TrainerSettings

    flash.GROUPED_CUDNN = said.fields.pop("grouped", flash.GROUPED_CUDNN)
    cpu = said.device == "cpu"
    shapes = said.shapes.split(",")
    budget = max(sum(parse(shape)) for shape in shapes)
    settings = {
        "model": said.folder, "device": said.device, "dtype": "float32" if cpu else "bfloat16", "kl_coef": 0.0,
        "entropy_coef": 0.0, "baseline": "none", "max_tokens_per_rank": budget, "ranks": said.ranks,
    } | said.fields  # fmt: skip
    began = time.perf_counter()
    failed = False
    with RankGroup(TrainerSettings(**settings)) as ranks:
        say({"started_s": round(time.perf_counter() - began, 1)})
        for shape in shapes:
            try:
                say({"shape": shape} | measure(ranks, shape, said))
                if said.profile and not cpu:
                    from tests.benchmarks.learner_profile import profile

                    batch = samples(shape, MODELS[said.model]["vocab_size"])
                    say({"shape": shape, "profile": profile(lambda batch=batch: ranks.step(batch))})
            except Exception as error:  # one shape that does not run must not hide the other
                traceback.print_exc()
                say({"shape": shape, "error": f"{type(error).__name__}: {str(error)[:400]}"})
                failed = True
                if said.ranks > 1:  # the others may wait in a collective for ever; they die with this process
                    os._exit(1)
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
