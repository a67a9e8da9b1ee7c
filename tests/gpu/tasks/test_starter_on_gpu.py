"""Every starter kernel and both styles of composed kernels against their models on a real GPU."""

import importlib.util

import pytest
import torch

from core.tasks.compose import compose
from core.tasks.format import build
from core.tasks.sources import load_source
from core.tasks.starter import starter_kernel

# The reference must not be the less exact of the two.
torch.backends.cudnn.allow_tf32 = False

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

CASES = [(task.name, task.source, starter_kernel(task.name)) for task in load_source(kind="starter")] + [
    (f"{made.name}-{style}", made.source, made.kernel(style))
    for made in compose(1, 10)
    for style in ("fused", "staged")
]


@pytest.mark.parametrize("profile", ["cpu", "small", "full"])
@pytest.mark.parametrize(("name", "source", "kernel"), CASES, ids=[case[0] for case in CASES])
def test_kernel_agrees_with_its_model_on_the_gpu(tmp_path, name, source, kernel, profile):
    path = tmp_path / "kernel.py"
    path.write_text(kernel)
    spec = importlib.util.spec_from_file_location(f"{path.stem}_{abs(hash(name))}", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    problem = build(source, name=name, profile=profile)
    model = problem.model(0).cuda()
    candidate = problem.model(1, module.ModelNew).cuda()
    candidate.load_state_dict(model.state_dict())
    inputs = [value.cuda() if isinstance(value, torch.Tensor) else value for value in problem.inputs(2)]
    with torch.no_grad():
        wanted, out = model(*inputs), candidate(*inputs)
    as_tuple = lambda made: tuple(made) if isinstance(made, tuple | list) else (made,)  # noqa: E731
    for left, right in zip(as_tuple(out), as_tuple(wanted), strict=True):
        assert (left.shape, left.dtype) == (right.shape, right.dtype)
        if right.dtype.is_floating_point:
            share = 1e-3 if right.dtype == torch.float32 else 5e-3
            far = (left.float() - right.float()).abs()
            assert bool((far <= share * (right.float().abs() + right.float().abs().mean())).all())
        else:
            assert torch.equal(left, right)
