"""`kernelmill sft`: supervised training that makes the policy which reinforcement starts from.

kernelmill sft --config configs/demo-sft.toml
kernelmill sft --config configs/demo-sft.toml steps=200 data.count=5000 out=policies/try
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from runners.pulse import Pulse, lasting


def add_parser(subparsers: "argparse._SubParsersAction[Any]") -> None:
    parser = subparsers.add_parser(
        "sft",
        help="make a starting policy by supervised training",
        description="Make a small policy by supervised training on generated pairs of tasks and kernels.",
    )
    parser.add_argument("--config", required=True, metavar="FILE", help="recipe, e.g. configs/demo-sft.toml")
    parser.add_argument(
        "--compile", action="store_true", help="compile the model: pays off above some 500 steps on a GPU"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the resolved recipe and leave")
    parser.add_argument("--force", action="store_true", help="replace what is in the recipe's `out`")
    parser.add_argument("overrides", nargs="*", default=[], metavar="section.key=value", help="changes to the recipe")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from configs.load import ConfigError, load_sft

    config = load_sft(args.config, args.overrides)
    if args.dry_run:
        print(config.model_dump_json(indent=2))
        return 0
    out = Path(config.out)
    if not args.force and out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise ConfigError(f"out = {config.out!r} is there already: name another folder (out=FOLDER), or --force")
    from runners.preflight import check_writable

    check_writable(out.absolute().parent, f"out = {config.out!r}")  # it is written when all is trained
    summary = _make(config, args.compile)
    print(f"{config.out}: {summary['parameters']:,} parameters, loss {summary['loss_curve'][-1][1]:.4f}")
    return 0


def _make(config: Any, compile_model: bool) -> dict[str, Any]:
    import torch

    from configs.load import ConfigError
    from core.training.sft import SftSettings
    from core.training.sft_data import Shares
    from core.training.sft_policy import Architecture, PolicyRecipe, make_policy

    data = config.data
    if data.kind == "jsonl" and not Path(data.path).is_file():
        raise ConfigError(
            f"data.path = {data.path!r} is no file: name JSON Lines of messages, or set data.kind = 'composed'"
        )
    if config.model and Path(config.model).is_dir():
        from runners.preflight import check_model_folder

        check_model_folder(Path(config.model), "model")
    device = config.device if config.device != "auto" else ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device = 'cuda', but torch sees no GPU: set device = 'auto' or 'cpu'")
    if not config.model:
        _check_memory(config.architecture, device)
    recipe = PolicyRecipe(
        out=config.out,
        model=config.model,
        architecture=Architecture(**config.architecture.model_dump()),
        training=SftSettings(
            **config.model_dump(
                include={"steps", "rows_per_step", "lr", "warmup_steps", "weight_decay", "grad_clip", "seed"}
            ),
            device=device,
            compile=compile_model,
        ),
        shares=Shares(**{name: getattr(data, name) for name in Shares._fields}),
        data_count=data.count,
        data_seed=data.seed,
        feedback=data.feedback,
        data_path=data.path if data.kind == "jsonl" else "",
    )
    began, last = time.monotonic(), "reading the model and making examples"

    def report(line: str) -> None:
        nonlocal last
        last = line
        pulse.said()
        print(line, file=sys.stderr, flush=True)

    with Pulse(lambda: f"kernelmill sft: {lasting(time.monotonic() - began)}; last: {last}") as pulse:
        return make_policy(recipe, report=report)


def _check_memory(architecture: Any, device: str) -> None:
    """The kernel would end this process without a word. Weights, gradients and AdamW's two moments, in float32."""
    import os

    from configs.load import ConfigError

    wanted = architecture.parameters() * (16 if device == "cpu" else 4)  # weights are made on the CPU in any case
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if wanted > there:
        raise ConfigError(
            f"architecture: {architecture.parameters():,} parameters want {wanted / 2**30:,.0f} GiB, this machine has "
            f"{there / 2**30:,.0f} GiB: make hidden, layers or intermediate smaller"
        )


if __name__ == "__main__":  # where the rest of the house is not installed (a bare GPU machine)
    top = argparse.ArgumentParser(prog="python -m runners.sft")
    add_parser(top.add_subparsers(required=True))
    arguments = top.parse_args(["sft", *sys.argv[1:]])
    sys.exit(arguments.run(arguments))
