"""What the tests of the room share: judges, one task, and a right answer to it into which things can be put."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from right_answer import TASK, candidate
from shared_judges import LEVELS, Judges
from workbench import Bench

from core.evaluation.judge import Judge
from core.evaluation.verdict import Verdict
from core.tasks.task import Task


@pytest.fixture(scope="session")
def judges(request: pytest.FixtureRequest) -> Iterator[Judges]:
    """Those that the chosen tests ask for."""
    here = Path(__file__).parent
    wanted = {name for item in request.session.items if here in item.path.parents for name in item.fixturenames}
    shared = Judges(wanted | set(LEVELS.values() if "outcomes" in wanted else ()))
    yield shared
    shared.stop()


@pytest.fixture(scope="session")
def judge(judges: Judges) -> Judge:
    return judges["judge"]


@pytest.fixture(scope="session")
def basic(judges: Judges) -> Judge:
    return judges["basic"]


@pytest.fixture(scope="session")
def sibling(judges: Judges) -> Judge:
    return judges["sibling"]


@pytest.fixture(scope="session")
def compiling(judges: Judges) -> Judge:
    return judges["compiling"]


@pytest.fixture
def verdict_of(judge: Judge) -> Callable[[str], Verdict]:
    return lambda source: judge.judge(TASK, source, "key")


@pytest.fixture
def variant() -> Callable[..., str]:
    return candidate


@pytest.fixture
def task() -> Task:
    return TASK


@pytest.fixture(scope="session")
def bench() -> Iterator[Bench]:
    """Executor and host without walls."""
    one = Bench()
    yield one
    one.stop()
