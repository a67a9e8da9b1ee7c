"""Faults per evaluator, counted from the verdicts that it gave; and its number in the eval server's API.

A fault is a candidate that touched memory outside its tensors or whose process died, or a candidate that could not be
judged at all (but not for a reference that does not run: that is the asker's). The counts tell which evaluator sees how
many; what they did to a GPU is in its own state. They start with the gateway and go back to 0 only on request.
"""

from collections import Counter
from typing import Any

from actors.eval_api import BAD_REFERENCE
from core.evaluation.verdict import Verdict

FAULTS = ("out_of_bounds", "crash")
NEAR = 0.8
"""Share of the threshold from which an evaluator is listed as near it."""


def is_fault(verdict_kind: str, category: str) -> bool:
    return (verdict_kind == "infra" and category != BAD_REFERENCE) or category in FAULTS


class FaultBook:
    """Names become numbers in the order in which they are first seen, and keep them."""

    def __init__(self, threshold: int) -> None:
        self.threshold = threshold
        self.names: list[str] = []
        self._faults: Counter[int] = Counter()
        self._categories: Counter[str] = Counter()

    def number(self, name: str) -> int:
        """The evaluator's number; a new one gets the next."""
        if name not in self.names:
            self.names.append(name)
        return self.names.index(name)

    def count(self, name: str, verdict_kind: str, category: str) -> None:
        """Take note of a verdict that was newly made (not of one that was answered again)."""
        number = self.number(name)
        if is_fault(verdict_kind, category):
            self._faults[number] += 1
            self._categories[category] += 1

    def count_verdict(self, name: str, verdict: Verdict) -> None:
        self.count(name, verdict.kind, verdict.category)

    def faults(self, number: int) -> int:
        return self._faults[number]

    @property
    def total(self) -> int:
        return self._faults.total()

    def reset(self, number: int | None = None) -> dict[str, int]:
        """Set one evaluator's count, or all, to 0; the counts before."""
        before = self.per_device()
        if number is None:
            self._faults.clear()
            self._categories.clear()
        else:
            self._faults[number] = 0
        return before

    def per_device(self) -> dict[str, int]:
        """Number (as a string: JSON has no other keys) -> faults."""
        return {str(number): self._faults[number] for number in range(len(self.names))}

    def statistics(self, gpus: dict[str, Any] | None = None) -> dict[str, Any]:
        """The body of `GET /fault_statistics`; `gpus` by number, of the evaluators that have one."""
        near = [number for number in range(len(self.names)) if self._faults[number] >= NEAR * self.threshold]
        return {
            "per_device_faults": self.per_device(),
            "total_faults": self.total,
            "max_faults_threshold": self.threshold,
            "devices_near_limit": near,
            "kernelmill": {
                "evaluators": {str(number): name for number, name in enumerate(self.names)},
                "by_category": dict(self._categories),
                "gpus": gpus or {},
            },
        }
