"""Which folder is meant when a run is named by its own config.json."""

import os
from pathlib import Path

from configs.load import ConfigError
from configs.schema import RunConfig
from runners.usage import UsageError


def where_it_lies(path: Path, config: RunConfig, overrides: list[str]) -> RunConfig:
    """The config, with its true `run.folder` where `path` is a run's own config.json: the folder that holds it is the
    run's. What it says itself may be relative to where the run was begun, or older than a move, and another run would
    begin there. Refuses a folder that has not the run's name, and one of two that may be meant."""
    here, said = Path(os.path.abspath(path.parent)), Path(config.run.folder) / config.run.name
    given = {text.partition("=")[0].strip() for text in overrides}
    meant_anew = "run.folder" in given or ("run.name" in given and here.name != config.run.name)
    if path.name != "config.json" or not (path.parent / "record").is_dir() or meant_anew:
        return config
    if here.resolve() == said.resolve():
        return config
    refuse_renamed(here, config.run.name)
    if said.is_absolute() and (said / "config.json").exists():
        raise UsageError(
            f"{path} names {said} as its run's folder, and a run stands there as well: to go on with that one give "
            f"{said / 'config.json'}, to go on with the one in {here} give run.folder={here.parent} too"
        )
    return config.model_copy(update={"run": config.run.model_copy(update={"folder": str(here.parent)})})


def refuse_renamed(root: Path, name: str) -> None:
    """Raises ConfigError when the folder of the run `name` has another name, which its streams have not."""
    if root.name == name:
        return
    home = root.with_name(name)
    back = f"rename the folder back to {home} and go on with run.name = {name!r}"
    if os.path.lexists(home):
        back = f"{home} stands there as well; to go on from this one, give it that name in another run.folder"
    raise ConfigError(
        f"{root} holds the run {name!r}, so it was renamed or copied: {back}; for a new run choose another run.name"
    )
