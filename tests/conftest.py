"""Tests marked `gpu` are skipped where there is none, whether they say so themselves or not."""

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if any(Path("/dev").glob("nvidia[0-9]*")):
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
