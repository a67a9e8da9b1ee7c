"""Tokens per second of a learner's step on one GPU, beside TRL's GRPO step with the same model, tokens and types.

    python -m tests.benchmarks.learner                        one configuration, TRL, one JSON line at the end
    python -m tests.benchmarks.learner --sweep                every configuration of CONFIGURATIONS, a line for each
    python -m tests.benchmarks.learner --profile              where the GPU's time goes at each shape as well
    python -m tests.benchmarks.learner --device cpu --tiny    the same program on a tiny model, without a GPU

Qwen3-0.6B shape with random weights, 1 x 16,384 and 8 x 2,048 tokens in one packed row, all but 16 tokens of each
sequence trained; a shape like `4000+700+2048` is a row of sequences of those lengths. A step is the learner's own
`Trainer.step`: plan, pack, transfer, forward, backward, gradient norm, clipping, AdamW over float32 masters, metrics.
TRL is measured in the same call (`tests/benchmarks/learner_trl.py`); `trl_tokens_per_s` is its fastest variant that
keeps float32 parameters as ours does, and `ratio` is against that one. `mfu` is (6N + attention flops) x tokens/s over
the card's peak (`core/training/flops.py`).

Every configuration, and TRL, has a process of its own and a time limit; what is measured is said on stderr at once (and
in the file of --out), so that nothing is lost when a later one fails. The first configuration comes before TRL.
"""

import argparse
import json
import platform
import sys
import tempfile
import time

from tests.benchmarks.children import json_lines
from tests.benchmarks.learner_shapes import MODELS, size_gb
from tests.gpu.fast_folder import in_memory

DEFAULT = "default"
CONFIGURATIONS: dict[str, dict] = {
    "default": {},
    "separate": {"join_products": False},
    "varlen": {"attention": "varlen"},
    "cudnn": {"attention": "cudnn"},
    "cudnn-repeated": {"attention": "cudnn", "grouped": False},
    "chunk-1024": {"head_chunk_tokens": 1024},
    "chunk-4096": {"head_chunk_tokens": 4096},
    "chunk-8192": {"head_chunk_tokens": 8192},
    "head-recompute": {"head": "recompute"},
    "head-cache-6gib": {"head": "recompute", "head_cache_gib": 6.0},
    "selective": {"activation_checkpointing": "selective"},
    "attention-kept": {"activation_checkpointing": "attention"},
    "full": {"activation_checkpointing": "full"},
    "eager": {"compile": False},
    "eager-selective": {"compile": False, "activation_checkpointing": "selective"},
    "sharded": {"shard": "always"},
    "context": {"context_parallel": True, "max_tokens_per_rank": 8192},
    "fa3": {"attention": "fa3"},
    "fa4": {"attention": "fa4"},
}
"""`context` is for 1x16384 on two ranks: its gradient norm is that of one rank, or long samples are trained wrongly."""


class Record:
    """What was measured so far, said as soon as it stands."""

    def __init__(self, out: str) -> None:
        self._file = open(out, "a") if out else None  # noqa: SIM115  open as long as the process
        self._began = time.monotonic()

    def say(self, line: dict) -> None:
        line = {"at_s": round(time.monotonic() - self._began, 1)} | line
        for stream in (sys.stderr, self._file):
            if stream is not None:
                print(json.dumps(line), file=stream, flush=True)

    def left(self, seconds: float) -> float:
        return seconds - (time.monotonic() - self._began)


def run_ours(folder: str, name: str, said: argparse.Namespace, record: Record) -> dict:
    """{shape: figures} of one configuration, with "error" where something failed."""
    command = [
        sys.executable, "-m", "tests.benchmarks.learner_run", folder, "--model", said.model, "--device", said.device,
        "--shapes", said.shapes, "--fields", json.dumps(CONFIGURATIONS[name]), "--ranks", str(said.ranks),
        "--steps", str(said.steps), "--warmup", str(said.warmup), *(["--profile"] if said.profile else []),
    ]  # fmt: skip
    result: dict = {}
    for line in json_lines(command, min(said.limit, record.left(said.seconds))):
        record.say({"configuration": name} | line)
        if "error" in line:
            result["error"] = line["error"]
        elif "profile" not in line and "shape" in line:
            result[line["shape"]] = {key: value for key, value in line.items() if key != "shape"}
    return result


def run_trl(folder: str, said: argparse.Namespace, record: Record) -> list[dict]:
    """TRL's lines; an error is a line too."""
    seconds = min(said.trl_seconds, record.left(said.seconds + said.trl_seconds))
    command = [
        sys.executable, "-m", "tests.benchmarks.learner_trl", folder, "--device", said.device, "--shapes", said.shapes,
        "--seconds", str(seconds),
    ]  # fmt: skip
    lines = []
    for line in json_lines(command, seconds + 60, env={"WANDB_MODE": "disabled"}):
        if line.keys() & {"variant", "versions", "error"}:  # and not its own log
            record.say({"trl": line})
            lines.append(line)
    return lines


def best_trl(lines: list[dict], shape: str) -> dict | None:
    """TRL's fastest variant with float32 parameters at a shape."""
    found = [x for x in lines if x.get("shape") == shape and "tokens_per_s" in x and "bf16" not in x["variant"]]
    return max(found, key=lambda x: x["tokens_per_s"], default=None)


def child_of(code: str, said: argparse.Namespace, limit_s: float = 120.0) -> dict:
    """The JSON line that a piece of Python prints: this process holds no GPU memory beside what is measured."""
    return next(iter(json_lines([sys.executable, "-c", code], limit_s)), {"error": "no answer"})


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    ask.add_argument("--tiny", action="store_true", help="a tiny model and short rows")
    ask.add_argument("--model", choices=tuple(MODELS), default="0.6b")
    ask.add_argument("--shapes", default="1x16384,8x2048")
    ask.add_argument("--sweep", action="store_true", help="measure every configuration")
    ask.add_argument("--configurations", default="", help=f"some of: {', '.join(CONFIGURATIONS)}")
    ask.add_argument("--first", action="store_true", help="no more configurations after one that measured every shape")
    ask.add_argument("--ranks", type=int, default=1)
    ask.add_argument("--steps", type=int, default=4)
    ask.add_argument("--warmup", type=int, default=2)
    ask.add_argument("--no-trl", action="store_true")
    ask.add_argument("--profile", action="store_true", help="kernels and shares of one step at each shape, on stderr")
    ask.add_argument("--out", default="", help="a file that every line is written to as well")
    ask.add_argument("--limit", type=float, default=150.0, help="seconds for one configuration, compiling included")
    ask.add_argument("--seconds", type=float, default=400.0, help="no configuration is begun after so long")
    ask.add_argument("--trl-seconds", type=float, default=100.0)
    said = ask.parse_args()
    if said.tiny:
        said.model, said.shapes = "tiny", "1x256,4x64"
    shapes = said.shapes.split(",")
    every = [name for name in CONFIGURATIONS if name != "context" or said.ranks > 1]
    names = said.configurations.split(",") if said.configurations else every if said.sweep else [DEFAULT]
    unknown = sorted(set(names) - set(CONFIGURATIONS))
    if unknown:
        ask.error(f"unknown configuration {unknown[0]!r}; known: {', '.join(CONFIGURATIONS)}")

    record, results, trl = Record(said.out), {}, []
    with tempfile.TemporaryDirectory(dir=in_memory(1.2 * size_gb(said.model))) as folder:
        made = child_of(
            "import json; from tests.benchmarks.learner_shapes import save_model, machine;"
            f"save_model({said.model!r}, {folder!r}, {said.device!r}); print(json.dumps(machine({said.device!r})))",
            said,
        )
        record.say({"machine": made})
        if "error" in made:
            raise SystemExit(f"no model: {made['error']}")
        for i, name in enumerate(names):
            if record.left(said.seconds) < 20:
                record.say({"configuration": name, "error": "no time left"})
                continue
            results[name] = run_ours(folder, name, said, record)
            if i == 0 and not said.no_trl:
                trl = run_trl(folder, said, record)
            if said.first and all(shape in results[name] for shape in shapes):
                break
    print(json.dumps(final(results, trl, shapes, said, made)), flush=True)


def final(results: dict[str, dict], trl: list[dict], shapes: list[str], said: argparse.Namespace, made: dict) -> dict:
    """The line that counts: the configuration whose slowest shape, against its best, is fastest."""
    whole = {name: r for name, r in results.items() if all(shape in r for shape in shapes)}
    line: dict = {
        "benchmark": "learner", "model": said.model, "ranks": said.ranks, "card": made["card"],
        "versions": {"python": platform.python_version(), "torch": made["torch"]}
        | next((x["versions"] for x in trl if "versions" in x), {}),
    }  # fmt: skip
    errors = {name: r["error"] for name, r in results.items() if "error" in r}
    if errors:
        line["errors"] = errors
    if not whole:
        return line | {"error": "no configuration measured every shape"}
    most = {shape: max(r[shape]["tokens_per_s"] for r in whole.values()) for shape in shapes}
    name = max(whole, key=lambda n: min(whole[n][shape]["tokens_per_s"] / most[shape] for shape in shapes))
    line["configuration"] = {"name": name, **CONFIGURATIONS[name]}
    if len(whole) > 1:
        line["others"] = {
            other: {shape: {key: r[shape].get(key) for key in ("tokens_per_s", "grad_norm")} for shape in shapes}
            for other, r in whole.items()
            if other != name
        }
    for shape in shapes:
        ours, theirs = whole[name][shape], best_trl(trl, shape)
        line[shape] = ours | {
            "trl_tokens_per_s": theirs["tokens_per_s"] if theirs else None,
            "trl_peak_gib": theirs["peak_gib"] if theirs else None,
            "trl_variant": theirs["variant"] if theirs else None,
            "ratio": round(ours["tokens_per_s"] / theirs["tokens_per_s"], 2) if theirs else None,
        }
    return line


if __name__ == "__main__":
    main()
