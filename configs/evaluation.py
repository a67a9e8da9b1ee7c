"""The table about held-out evaluation beside training (docs/rollout.md); `configs.schema` is the whole."""

from pydantic import Field, model_validator

from configs.section import Section


class Evaluation(Section):
    """The held-out tasks (`tasks.heldout`) played by policy versions of the run, while it trains."""

    every_steps: int = Field(default=0, ge=0)
    """Versions that are multiples of this are evaluated, but for the run's last one, with which it ends; 0: none."""
    tasks: int = Field(default=0, ge=0)
    """Only the first so many held-out tasks; 0 takes all."""
    samples: int = Field(default=1, ge=1)
    """Episodes of each task."""
    greedy: bool = False
    """The likeliest token instead of a drawn one."""
    groups_in_flight: int = Field(default=2, ge=1)
    """Most held-out groups that are under way at once, in all generators together."""
    answer_timeout_s: float = Field(default=1800.0, gt=0)
    """A group without an answer for this long is left out of its version's figures."""

    @model_validator(mode="after")
    def _samples_differ(self) -> "Evaluation":
        if self.greedy and self.samples > 1:
            raise ValueError(f"greedy episodes are all the same: samples = {self.samples} with greedy, wanted 1")
        return self
