"""The options of a judge on this machine, and its settings' troubles in the words that were typed."""

import argparse
import re
from typing import TYPE_CHECKING, Any

from runners.usage import UsageError

if TYPE_CHECKING:
    from core.evaluation.settings import JudgeSettings

_OPTIONS = {
    "draws": "--draws",
    "target": "--target",
    "wall_s": "--wall",
    "gpu_profile": "--gpu-profile",
    "gpu_wall_s": "--gpu-wall",
}
_SETTING = re.compile(rf"^({'|'.join(_OPTIONS)})\b(?: =)?")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--draws", type=int, default=3, help="input draws, each with secret values (default 3)")
    parser.add_argument("--target", default="", help="cross-compile for this GPU too, e.g. cuda:90 or hip:gfx942")
    parser.add_argument(
        "--wall",
        type=float,
        default=20.0,
        metavar="SECONDS",
        help="wall-clock seconds for a candidate's processes, in each try (default 20); what they wait for a processor "
        "on a busy machine comes on top, up to three times as much",
    )
    parser.add_argument("--isolation", default="auto", choices=("auto", "namespaces", "basic"), help="sandbox level")
    parser.add_argument(
        "--gpu", action="store_true", help="go on to this machine's GPU: right at full size, and measured"
    )
    parser.add_argument("--gpu-profile", choices=("small", "full"), help="with --gpu: sizes there (default full)")
    parser.add_argument(
        "--gpu-wall",
        type=float,
        metavar="SECONDS",
        help="with --gpu: seconds for a candidate there, compilation and everything (default 60)",
    )


def settings(args: argparse.Namespace, profile: str = "cpu") -> "JudgeSettings":
    """Raises UsageError that names the option."""
    from core.evaluation.settings import JudgeSettings

    asked = {"gpu_profile": args.gpu_profile, "gpu_wall_s": args.gpu_wall}
    of_gpu: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    if of_gpu and not args.gpu:
        raise UsageError(f"{_OPTIONS[next(iter(of_gpu))]} is of the GPU tier: add --gpu, or leave it out")
    if args.gpu:
        of_gpu |= {"device_class": "gpu", "speed": "measured"}
    try:
        return JudgeSettings(
            profile=profile,  # type: ignore[arg-type]
            draws=args.draws,
            target=args.target,
            wall_s=args.wall,
            isolation=args.isolation,
            **of_gpu,
        )
    except ValueError as error:
        raise UsageError(in_options(str(error))) from None


def in_options(text: str) -> str:
    """A message that names settings, for a person who typed options."""
    text = text.replace("judge.device_class = 'gpu', but", "--gpu:").replace("or use 'cpu'", "or leave --gpu out")
    text = _SETTING.sub(lambda found: _OPTIONS[found[1]], text)
    return re.sub(r"^(--\S+ -?\d+)\.0:", r"\1:", text)  # as it was typed
