"""The corpus's verdicts, for all tests of the folder."""

from collections.abc import Iterator

import pytest
from corpus import Verdicts


@pytest.fixture(scope="session")
def verdicts(request: pytest.FixtureRequest) -> Iterator[Verdicts]:
    """Of every chosen test with a parameter `path` that asks for verdicts, in the tests' order."""
    chosen = [item.callspec.params["path"] for item in request.session.items if "verdicts" in item.fixturenames]
    collected = Verdicts(chosen)
    yield collected
    collected.close()
