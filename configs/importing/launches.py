"""Where a script launches a trainer, and with which options."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from configs.importing.options import Option, flags, flattened, overrides
from configs.importing.reading import Left
from configs.importing.shell import Command, Script
from configs.importing.shell_expansion import Word

MAX_OPTIONS = 5_000
_OF_SLIME = {
    "hf-checkpoint", "rollout-batch-size", "n-samples-per-prompt", "num-rollout", "advantage-estimator", "prompt-data",
    "global-batch-size", "rollout-max-response-len", "rollout-temperature", "actor-num-gpus-per-node", "max-turns",
    "rollout-num-gpus-per-engine", "eps-clip", "kl-loss-coef", "lr", "num-epoch", "max-tokens-per-gpu",
}  # fmt: skip
"""Options by which a launch is known for slime's or TritonForge's."""
_OF_VERL = ("actor_rollout_ref.", "algorithm.", "trainer.", "data.", "async_training.")
_NOT_RL = ("sft", "generation", "main_eval", "rollout_only")


class NoLaunch(ValueError):
    """Nothing here can be made a recipe of; the text says why and what to do."""


@dataclass
class Launch:
    trainer: str
    """slime (TritonForge's is of the same form) or verl."""
    program: str
    """train_async.py, verl.trainer.main_ppo; empty where the script does not name it."""
    options: list[Option]
    line: int = 0
    left: list[Left] = field(default_factory=list)


def of_script(script: Script) -> Launch:
    """The launch with the most options that are known. Raises NoLaunch."""
    found = [one for command in script.commands for one in _launches(command)]
    if not found:
        raise NoLaunch(
            "no option of slime, TritonForge or verl found: wanted a bash script that starts train.py --option value "
            "... or python3 -m verl.trainer.main_ppo key=value ..."
        )
    launch = max(found, key=lambda one: one[0])[1]
    _is_rl(launch)
    unread = "the launch with the most options is read alone"
    launch.left += [Left(f"{one.program or 'a launch'}", unread, one.line) for _, one in found if one is not launch]
    launch.left += _orphans(script.commands)
    launch.left += [
        Left(f"source {word.text[:60]}", "files that a script reads are not read", word.line) for word in script.sourced
    ]
    return launch


def of_yaml(tree: object) -> Launch:
    """A YAML file of verl's. Raises NoLaunch."""
    if not isinstance(tree, dict):
        raise NoLaunch("no table of options found: wanted verl's YAML (actor_rollout_ref: ...), or a bash script")
    try:
        options = flattened(tree, MAX_OPTIONS)
    except ValueError as error:
        raise NoLaunch(f"not read: {error}") from None
    if not _score(options, "verl"):
        raise NoLaunch("no option of verl found: wanted actor_rollout_ref, algorithm, trainer or data at the top")
    return Launch("verl", "", options)


def _launches(command: Command) -> Iterator[tuple[int, Launch]]:
    program, words = _program(command.words)
    for trainer, parse in _FORMS:
        options = parse(words)
        if len(options) > MAX_OPTIONS:
            raise NoLaunch(f"line {command.line}: more than {MAX_OPTIONS:,} options")
        if score := _score(options, trainer, program):
            yield score, Launch(trainer, program, options, command.line)


_FORMS: tuple[tuple[str, Callable[[Sequence[Word]], list[Option]]], ...] = (("slime", flags), ("verl", overrides))


def _program(words: Sequence[Word]) -> tuple[str, Sequence[Word]]:
    """(the Python program, the words behind it); all words where none is named."""
    for at, word in enumerate(words):
        if "sft_trainer" in word.text:  # also inside a word that is not known for sure
            return "sft_trainer", words[at + 1 :]
        if word.text.endswith(".py") and not word.text.startswith("-"):
            return word.text, words[at + 1 :]
        if word.text == "-m" and at + 1 < len(words) and "." in words[at + 1].text:
            return words[at + 1].text, words[at + 2 :]
    start = next((at + 1 for at, word in enumerate(words) if word.text == "--"), 0)
    return "", words[start:]


def _score(options: Sequence[Option], trainer: str, program: str = "") -> int:
    """How many options are known for that trainer's; 0 where they may as well be another program's."""
    if trainer == "slime":
        count = sum(option.name in _OF_SLIME for option in options if not option.hydra)
        return count if count > 1 or program.rpartition("/")[2].startswith("train") else 0
    names = [option.name for option in options if option.hydra]
    known = any(name.startswith(_OF_VERL[:2]) for name in names) or any(word in program for word in _NOT_RL)
    return sum(name.startswith(_OF_VERL) for name in names) if known else 0


def _is_rl(launch: Launch) -> None:
    supervised = any(option.name == "loss-type" and "sft_loss" in option.values for option in launch.options)
    if supervised or "sft" in launch.program:
        raise NoLaunch(f"line {launch.line}: it trains on given answers; `kernelmill sft` does (configs/demo-sft.toml)")
    if any(word in launch.program for word in _NOT_RL):
        raise NoLaunch(f"line {launch.line}: {launch.program} trains nothing: give the script that starts training")


def _orphans(commands: Sequence[Command]) -> Iterator[Left]:
    why = "it is a command of its own: the line before it ends without \\, or in a comment"
    for command in commands:
        words = command.words
        if words[0].text.startswith("--") or any(o.name.startswith(_OF_VERL) for o in overrides(words[:1])):
            options = flags(words) if words[0].text.startswith("--") else overrides(words)
            yield from (Left(option.shown(), why, option.line) for option in options)
