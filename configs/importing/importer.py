"""`kernelmill import-config`: a trainer's launch script, or verl's YAML file, as a recipe of ours. Pure but for reading
the file.

    import_file(Path("run-qwen3-8B.sh")) -> Imported(toml="[run] ...", left=[Left("--save-hf x", "..."), ...], ...)
"""

import re
from dataclasses import dataclass
from pathlib import Path

from configs.importing import shell, slime, verl
from configs.importing.launches import Launch, NoLaunch, of_script, of_yaml
from configs.importing.reading import Left, Reading
from configs.importing.recipe import settle, written
from configs.importing.shell_tokens import ShellError
from configs.load import ConfigError
from core import plain_files

MAX_BYTES = 1 << 18


@dataclass(frozen=True)
class Imported:
    toml: str
    left: list[Left]
    mapped: int
    options: int
    """Different options of the launch, mapped or left over."""


def import_file(path: Path) -> Imported:
    """Raises ConfigError with one line where the file is none, or holds no launch."""
    try:
        text = plain_files.text(path, str(path), MAX_BYTES)
    except plain_files.NotPlain as error:
        raise ConfigError(f"{error}; name a launch script (bash) of slime, TritonForge or verl") from None
    if "\0" in text:
        raise ConfigError(f"{path}: a binary file, wanted a launch script (bash) of slime, TritonForge or verl")
    try:
        launch = _yaml(text) if path.suffix in (".yaml", ".yml") else _script(path, text)
    except (ShellError, NoLaunch) as error:
        raise ConfigError(f"{path}: {error}") from None
    return imported(launch, path.name)


def imported(launch: Launch, name: str) -> Imported:
    """The recipe of a launch that stands in a file of that name."""
    r = Reading(launch.options, launch.trainer)
    r.set("run.name", _run_name(name), note="of the script's name")
    (slime if launch.trainer == "slime" else verl).convert(r, launch.program)
    settle(r)
    left = sorted(r.left, key=lambda one: one.line) + launch.left
    what = f"{launch.program or launch.trainer}{f' in line {launch.line}' if launch.line else ''}"
    heading = [
        f"From {name} ({what}) by kernelmill import-config: {r.mapped()} of {r.count} options carried over.",
        "Judging is ours: on the CPU, with modelled speed, unless [judge] says otherwise (docs/judging-on-gpus.md).",
        "docs/switching.md has the table; kernelmill up THIS --dry-run prints every value that holds.",
    ]
    return Imported(written(r, heading, left), left, r.mapped(), r.count)


def _script(path: Path, text: str) -> Launch:
    if path.suffix == ".py":
        raise NoLaunch("a Python program, which is not run: give the command that it makes as a bash script")
    return of_script(shell.read(text))


def _yaml(text: str) -> Launch:
    try:
        import yaml
    except ImportError:
        raise NoLaunch("YAML is read with pyyaml, which is not installed: pip install pyyaml") from None
    try:
        return of_yaml(yaml.safe_load(text))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        if isinstance(error, NoLaunch):
            raise
        where = getattr(error, "problem_mark", None)
        raise NoLaunch(f"not valid YAML{f' (line {where.line + 1})' if where else ''}") from None


def _run_name(name: str) -> str:
    slug = re.sub(r"[^a-z0-9]+", "-", Path(name).stem.lower()).strip("-")[:41].strip("-")
    return slug or "run"
