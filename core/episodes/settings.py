"""What playing an episode is told: the run's `episodes` and `rollout` settings that matter here, as plain data.

`core` imports no configs, so the fields mirror `configs.schema.Episodes` and `configs.schema.Rollout` by name.
"""

import math
from typing import Any

import msgspec


class PlaySettings(msgspec.Struct, frozen=True, kw_only=True):
    max_turns: int = 3
    success_score: float = 1.3
    """Infinity where the config says "never"."""
    zero_turns: int = 2
    deadline_s: float = 900.0
    """An episode that takes longer becomes a tombstone."""
    prompt: str = "kernelbench"
    """One of `core.episodes.prompts.STYLES`."""
    thinking: bool = False
    history: str = "whole"
    """One of `core.episodes.history.MODES`."""
    history_tokens: int = 0
    """Most tokens of a later turn's prompt with a compressed history; 0: what the context leaves."""
    max_new_tokens: int = 4096
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    verdict_timeout_s: float = 300.0
    """A verdict that takes longer ends the episode with a tombstone."""

    @classmethod
    def of(cls, *sections: Any) -> "PlaySettings":
        """From the config's sections: `PlaySettings.of(config.episodes, config.rollout)`."""
        found = {
            name: getattr(section, name)
            for section in sections
            for name in cls.__struct_fields__
            if getattr(section, name, None) is not None
        }
        if found.get("success_score") == "never":
            found["success_score"] = math.inf
        return cls(**found)
