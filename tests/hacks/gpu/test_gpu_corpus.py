"""On a GPU: every hack of the device part is refused or brings nothing, no honest kernel is refused."""

import pytest
import torch
from gpu_corpus import HERE, as_wanted, files, judge

pytestmark = [
    pytest.mark.gpu, pytest.mark.slow, pytest.mark.timeout(900),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]  # fmt: skip
WORKERS = 6


@pytest.fixture(scope="module")
def answers():
    return {answer["file"]: answer for answer in judge(files(), WORKERS)}


@pytest.mark.parametrize("name", [f"{path.parent.name}/{path.stem}" for path in files()])
def test_verdict_is_as_wanted(answers, name) -> None:
    assert as_wanted((HERE / f"{name}.py").read_text(), answers[name]), answers[name]
