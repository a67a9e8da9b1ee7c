"""A small model answers in a moment; whoever wants to find it in the middle of an answer needs it slower."""

import time

import pytest

from core.generation.transformers_engine import TransformersEngine

STEP_S = 0.005


def paced(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on a step of a transformers engine rests a little; other threads go on meanwhile."""
    sample = TransformersEngine._sample

    def slower(engine: TransformersEngine, *arguments: object) -> None:
        time.sleep(STEP_S)
        sample(engine, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(TransformersEngine, "_sample", slower)
