"""One configuration of the learner's benchmark, measured in this process: a JSON line for each shape as it stands.

    python -m tests.benchmarks.learner_run FOLDER --model 0.6b --shapes 1x16384,8x2048 --fields '{"compile": true}'

Run by `tests.benchmarks.learner`. Lines: {"shape", figures ...}, with --profile {"shape", "profile": ...} behind each.
"""

import argparse
import json
import statistics
import time
import traceback

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


def measure(ranks, shape: str, said: argparse.Namespace) -> dict:
    """Figures of the median step at a shape."""
    batch = samples(shape, MODELS[said.model]["vocab_size"])
    began = time.perf_counter()
    refused = sum(ranks.step(batch)["applied"] != 1.0 for _ in range(said.warmup))
    warmup_s = time.perf_counter() - began
    steps = [ranks.step(batch) for _ in range(said.steps)]
    middle = statistics.median_low([s["step_s"] for s in steps])
    numbers = next(s for s in steps if s["step_s"] == middle)
    if numbers["applied"] != 1.0:
        raise RuntimeError(f"the step was refused: {[n for n in numbers if n.startswith('refused')]}")
    parts = {n: round(numbers[n], 4) for n in ("plan_s", "pack_s", "forward_backward_s", "optimizer_s")}
    return {
        "tokens_per_s": round(numbers["tokens_per_s"]),
        "mfu": round(numbers["mfu"], 4) if "mfu" in numbers else None,
        "peak_gib": round(max(s["peak_gib"] for s in steps), 2) if "peak_gib" in numbers else None,
        "step_s": round(middle, 4), **parts, "steps_s": [round(s["step_s"], 4) for s in steps],
        "warmup_s": round(warmup_s, 1), "warmup_refused": refused, "grad_norm": round(numbers["grad_norm"], 5),
        "entropy": round(numbers["entropy"], 4), **graphs(),
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
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
