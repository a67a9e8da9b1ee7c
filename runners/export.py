"""`kernelmill export RUN_FOLDER`: the trained policy as a Hugging Face folder that transformers and vLLM load.

A checkpoint holds what training goes on from: float32 masters, optimizer, what was consumed. This takes the weights
out of it, in the type that the policy is served in, beside the config and the tokenizer that the run started with.
"""

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from runners.pulse import Pulse, lasting

if TYPE_CHECKING:
    from core.run_folder import RunFolder


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "export",
        help="the trained policy as a Hugging Face folder",
        description="Write a checkpoint's policy as a Hugging Face folder (config, tokenizer, safetensors) that "
        "transformers, vLLM and `kernelmill evaluate --model` load, adapters added in. Works at any moment of a run.",
    )
    parser.add_argument("run_folder", help="the run's folder (runs/demo), or its name in runs/ (demo)")
    parser.add_argument("--step", type=int, metavar="N", help="checkpoint to take (default: the newest)")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where to (default: policy/ in the run's folder)")
    parser.add_argument(
        "--model", type=Path, metavar="FOLDER", help="config and tokenizer (default: the policy the run started from)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0; raises RecordError or UsageError when there is no such run, no such checkpoint or no place for the policy."""
    from core.checkpoints import store
    from core.record import reading
    from core.run_folder import RunFolder
    from runners.usage import UsageError

    folder = RunFolder(reading.run_folder(args.run_folder))
    found = store.committed(folder.checkpoints)
    if not found:
        raise UsageError(f"{folder.root} has no checkpoint yet: one is made every checkpoints.every_steps steps")
    chosen = (
        store.step_folder(folder.checkpoints, args.step)
        if args.step is not None
        else store.latest_committed(folder.checkpoints)
    )
    if chosen not in found:
        raise UsageError(f"--step {args.step}: checkpoints here: {', '.join(path.name for path in found)}")
    assert chosen is not None
    try:
        print(_export(args, folder, chosen))
    except store.Damaged as error:
        raise UsageError(f"{error}; {_another(chosen, found)}") from None
    return 0


def _export(args: argparse.Namespace, folder: "RunFolder", chosen: Path) -> Path:
    from configs.load import shipped_policy
    from core.checkpoints import store
    from runners.preflight import check_writable
    from runners.usage import UsageError

    model = args.model or Path(shipped_policy(store.read_manifest(chosen).model))
    if not (model / "config.json").is_file():
        raise UsageError(f"{model} has no config.json: name a folder with the policy's config and tokenizer by --model")
    out = args.out or folder.root / "policy"
    if out.resolve() in (model.resolve(), *model.resolve().parents, *chosen.resolve().parents):
        raise UsageError(f"--out {out} holds what the policy is made of: choose another folder")
    if out.is_symlink() and not out.exists():
        raise UsageError(f"--out {out} is a link to nothing: choose a new folder")
    if out.exists() and not (out.is_dir() and (_is_policy(out) or not any(out.iterdir()))):
        raise UsageError(f"--out {out} is there and no policy: choose a new folder")
    check_writable(out.absolute(), f"--out {out}")

    from core.checkpoints.export import export_huggingface

    began = time.monotonic()
    with Pulse(lambda: f"kernelmill export: {chosen.name} is checked and written, {lasting(time.monotonic() - began)}"):
        return export_huggingface(chosen, out, model=model)


def _another(chosen: Path, found: list[Path]) -> str:
    """What can be taken in place of a damaged checkpoint."""
    others = [str(int(path.name.removeprefix("step-"))) for path in found if path != chosen]
    if not others:
        return "put that file back from a copy: the run has no other checkpoint"
    return f"put that file back from a copy, or take another checkpoint by --step: {', '.join(others)}"


def _is_policy(folder: Path) -> bool:
    """What an earlier export may have made, and this one may replace."""
    return (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))
