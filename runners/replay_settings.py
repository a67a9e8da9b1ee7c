"""What each step of a replay is trained with: the run's settings at that step, the overrides, what this machine has."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from configs.schema import RunConfig
    from core.record.reading import StepRow


class Settings:
    """Of the run in `folder`; the overrides count from step `overridden_from` on."""

    def __init__(self, folder: Path, overrides: list[str]) -> None:
        """Raises ConfigError."""
        from configs.back_then import BackThen
        from configs.load import load
        from core.record import reading

        self.config = load(folder / "config.json", overrides)
        moved = [text for text in overrides if text.startswith("model.path=")]  # where it is, not what
        self.overrides, self.overridden_from = [text for text in overrides if text not in moved], 1
        told = [(fact.at, fact.data["changes"]) for fact in reading.facts(folder) if fact.kind == "other_settings"]
        own = load(folder / "config.json", moved)
        self.reward = own.reward
        """The run's."""
        self._then = BackThen(own, told)
        self._known: dict[tuple[str, bool], RunConfig] = {}
        self.told: list[str] = []
        """Which devices are not those of the run."""

    def of(self, row: "StepRow") -> "RunConfig":
        """Raises ConfigError."""
        then, overridden = self._then.at(row.at), row.step >= self.overridden_from
        key = (then.model_dump_json(), overridden)
        if key not in self._known:
            self._known[key] = self._fitted(_with(then, self.overrides if overridden else ()))
        return self._known[key]

    def _fitted(self, config: "RunConfig") -> "RunConfig":
        """With the devices that are here; those that were asked for by an override are meant."""
        import torch

        learner = config.learner
        if learner.device == "cpu" or any(text.startswith("learner.device=") for text in self.overrides):
            return config
        cards = torch.cuda.device_count() if torch.cuda.is_available() else 0
        device, ranks = learner.device if cards else "cpu", max(1, min(learner.ranks, cards))
        if not cards or ranks < learner.ranks:
            words = f"learner.device = {device!r}, learner.ranks = {ranks} (in the run {learner.ranks})"
            line = f"{cards or 'no'} GPU here: {words}: figures agree to rounding, not to the last bit"
            self.told += [] if line in self.told else [line]
        fitted = learner.model_copy(update={"device": device, "ranks": ranks})
        return config.model_copy(update={"learner": fitted})


def _with(config: "RunConfig", overrides: Sequence[str]) -> "RunConfig":
    """As if it had been loaded with these overrides."""
    from configs.load import load

    if not overrides:
        return config
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(config.model_dump(mode="json")))
        return load(path, list(overrides))
