"""What the tests of the room share: judges, one task, and a right answer to it into which things can be put."""

import tempfile
from collections.abc import Callable, Iterator

import pytest
from right_answer import TASK, candidate
from shared_judges import Judges
from workbench import Bench

from core.evaluation.gpu import lease
from core.evaluation.judge import Judge
from core.evaluation.verdict import Verdict
from core.tasks.task import Task


@pytest.fixture(scope="session", autouse=True)
def own_lease(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Stages that use the CPU as their device don't wait for those of other test processes: there is nothing to share,
    and no time is judged."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("lease")))
        lease._path("cpu")  # remembered


@pytest.fixture(scope="session")
def judges() -> Iterator[Judges]:
    shared = Judges()
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
