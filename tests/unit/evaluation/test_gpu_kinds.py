"""Tasks of every kind through the GPU stage: what inputs, outputs and side effects there may be; with masters, and as
huge tasks are judged (sealed inputs, outputs in parts, memory by turns)."""

import pytest
import torch

from core.evaluation.gpu import timing
from core.evaluation.gpu.stage import GpuSettings, GpuStage
from core.evaluation.walls import sandbox
from core.tasks.task import Task

GPU = pytest.param(
    "cuda:0", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
)
MODEL = """
import torch
{before}
class Model(torch.nn.Module):
    def __init__(self, *args):
        super().__init__()
        {init}
    def forward(self, x, *rest):
        {body}
def get_inputs():
    return [{inputs}]
def get_init_inputs():
    return [{args}]
"""
# name: (init, body, inputs, right bodies, {category: wrong body})
KINDS = {
    "float16": ("pass", "return torch.relu(x) * 2", "torch.randn(64, 64).half()",
        ["return x.clamp(min=0) * 2"], {"wrong_value": "return torch.relu(x) * 2.02"}),
    "bfloat16": ("pass", "return torch.softmax(x, 1)", "torch.randn(64, 64).bfloat16()",
        ["return torch.softmax(x.float(), 1).bfloat16()"], {"wrong_value": "return torch.softmax(x, 0)"}),
    "embedding": ("self.table = torch.nn.Parameter(torch.randn(50, 32))", "return self.table[x]", "torch.randint(0, 50, (128,))",
        ["return self.table.index_select(0, x)"], {"wrong_value": "return self.table[x - 1]"}),
    "mask": ("pass", "return torch.where(rest[0], x, -x)", "torch.randn(64, 64), torch.rand(64, 64) > 0.5",
        ["return x * (2 * rest[0].float() - 1)"], {"wrong_value": "return x", "input_mutated": "rest[0].logical_not_(); return torch.where(rest[0], -x, x)"}),
    "argmax": ("pass", "return torch.argmax(x, 1)", "torch.randn(64, 64)",
        ["return x.max(1).indices"], {"wrong_value": "return x.argmin(1)", "wrong_dtype": "return x.argmax(1).int()"}),
    "several": ("pass", "return {'a': x + 1, 'b': (x.sum(1), [x.amax(1)])}", "torch.randn(64, 64)",
        ["return {'a': 1 + x, 'b': [x.sum(1), (x.max(1).values,)]}"],
        {"wrong_value": "return {'a': x + 1, 'b': (x.sum(1), [x.amin(1)])}", "wrong_structure": "return x + 1"}),
    "empty": ("pass", "return x * 2, x[:0]", "torch.randn(64, 64)",
        ["return x + x, x[:0].clone()"], {"wrong_value": "return x * 2.1, x[:0]", "wrong_shape": "return x * 2, x[:1]"}),
    "scalars": ("pass", "return x * rest[0] + rest[1][0]", "torch.randn(64, 64), 0.5, (3, 'up', None)",
        ["return rest[1][0] + x * rest[0]"], {"wrong_value": "return x * 0.6 + rest[1][0]"}),
    "strided": ("pass", "return x.sum(1) + rest[0].sum(1) + rest[1].sum(1)",
        "torch.randn(128, 64)[:, ::2], torch.randn(32, 128).T, torch.randn(128, 1).expand(128, 32)",
        ["return (x + rest[0] + rest[1]).sum(1)"], {"wrong_value": "return x.sum(1)"}),
    "scalar output": ("pass", "return (x * x).mean()", "torch.randn(64, 64)",
        ["return (x * x).sum() / x.numel()"], {"wrong_value": "return (x * x).sum() / (x.numel() - 64)"}),
    "alias": ("pass", "return x.view(-1)", "torch.randn(64, 64)",
        ["return x.flatten().clone()", "return x.reshape(-1)"], {"wrong_value": "return x.T.reshape(-1)"}),
    "expanded output": ("pass", "return x.mean(1, keepdim=True).expand(-1, 64)", "torch.randn(64, 64)",
        ["return x.mean(1, keepdim=True).repeat(1, 64)"], {"wrong_value": "return x"}),
    "mutates": ("pass", "return x.mul_(2).sum(1)", "torch.randn(64, 64)",
        ["x.add_(x.clone()); return x.sum(1)"], {"input_mutated": "return (x * 2).sum(1)"}),
    "statistics": ("self.norm = torch.nn.BatchNorm1d(32)", "return self.norm(x)", "torch.randn(64, 32) * 2 + 1",
        ["return torch.nn.functional.batch_norm(x, self.norm.running_mean, self.norm.running_var, self.norm.weight, self.norm.bias, self.training)"],
        {"state_mutated": "return torch.nn.functional.batch_norm(x, self.norm.running_mean.clone(), self.norm.running_var.clone(), self.norm.weight, self.norm.bias, self.training)",
         "wrong_value": "return torch.nn.functional.batch_norm(x, self.norm.running_mean, self.norm.running_var, self.norm.weight, self.norm.bias, True)"}),
    "attribute": ("self.shift = torch.randn(64)", "return x + self.shift", "torch.randn(64, 64)",
        ["return self.shift + x"], {"wrong_value": "return x"}),
    "dropout": ("self.drop = torch.nn.Dropout(0.3)", "return self.drop(x) * 2", "torch.randn(64, 64)",
        ["return x * 2"], {"wrong_value": "return x * 1.9"}),
    "complex": ("pass", "return torch.fft.fft(x)", "torch.randn(32, 64)",
        ["return torch.fft.fft(x + 0)"], {"wrong_value": "return torch.fft.fft(x).conj().resolve_conj()"}),
}  # fmt: skip
CASES = [(name, body, "") for name, kind in KINDS.items() for body in kind[3]]
CASES += [(name, body, category) for name, kind in KINDS.items() for category, body in kind[4].items()]
KERNEL = "import triton\n@triton.jit\ndef kernel(x):\n    pass\n"


def _task(name, before="", args=""):
    init, body, inputs = KINDS[name][:3]
    source = MODEL.format(before=before, init=init, body=body, inputs=inputs, args=args)
    return Task(task_id=f"test/{name}", name="kind", level=1, origin="test", source=source)


def _candidate(name, body, before=""):
    source = MODEL.format(before=KERNEL + before, init=KINDS[name][0], body=body, inputs="", args="")
    return source.replace("class Model(", "class ModelNew(")


def _open(device, slot, **sizes):
    settings = GpuSettings(
        own_work=False,
        device=device,
        wall_s=60.0,
        part_elements=1024,
        protocol=timing.Protocol(rounds=2, budget_s=0.05, most_calls=4),
    )
    found = GpuStage(settings, sandbox.probe(), slot=slot, **sizes)
    found.start()
    found.wait_ready()
    return found


@pytest.fixture(scope="module", params=["cpu", GPU])
def stage(request):
    found = _open(request.param, 120)
    yield found
    found.stop()


@pytest.fixture(scope="module", params=["cpu", GPU])
def lean(request):
    found = _open(request.param, 124, huge_bytes=0, lean_bytes=0)
    yield found
    found.stop()


@pytest.mark.parametrize(("name", "body", "category"), CASES)
def test_tasks_of_every_kind(stage, name, body, category):
    verdict = stage.judge(_task(name), _candidate(name, body), "k", timed=not category)
    assert (verdict.kind, verdict.category) == ("fail" if category else "pass", category), verdict.feedback


@pytest.mark.parametrize(("name", "body", "category"), CASES)
def test_tasks_of_every_kind_as_huge_ones(lean, name, body, category):
    verdict = lean.judge(_task(name), _candidate(name, body), "k", timed=not category)
    assert (verdict.kind, verdict.category) == ("fail" if category else "pass", category), verdict.feedback


def test_tensors_among_constructor_arguments(stage):
    init, args = (
        "self.scale = torch.nn.Parameter(args[0].clone()); self.kept = args[1]['a']",
        "torch.randn(64), {'a': torch.arange(64.0)}",
    )
    source = MODEL.format(
        before="", init=init, body="return x * self.scale + self.kept", inputs="torch.randn(64, 64)", args=args
    )
    task = Task(task_id="test/init", name="init", level=1, origin="test", source=source)
    for body, category in (("return self.kept + self.scale * x", ""), ("return x * self.scale", "wrong_value")):
        candidate = MODEL.format(before=KERNEL, init=init, body=body, inputs="", args="").replace(
            "class Model(", "class ModelNew("
        )
        verdict = stage.judge(task, candidate, "k", timed=False)
        assert verdict.category == category, verdict.feedback


@pytest.mark.parametrize(
    ("body", "category"),
    [
        ("torch.backends.cuda.matmul.allow_tf32 = True; return torch.relu(x) * 2", "tampering"),
        ("torch.set_float32_matmul_precision('medium'); return torch.relu(x) * 2", "tampering"),
        ("return torch.relu(x) * 2", ""),
    ],
)
def test_precision_switches_are_read_back(stage, body, category):
    verdict = stage.judge(_task("float16"), _candidate("float16", body), "k")
    assert verdict.category == category, verdict.feedback
    if not category:
        assert (
            stage.flags["trusted"] == stage.flags["candidate"]
            and stage.flags["trusted"]["cuda.matmul.allow_tf32"] == "False"
        )


def test_a_tasks_own_switches_hold_on_all_sides_and_for_it_alone(stage):
    switched = _task("argmax", before="torch.backends.cuda.matmul.allow_tf32 = True")
    assert stage.judge(switched, _candidate("argmax", "return x.max(1).indices"), "k").kind == "pass"
    assert {side: flags["cuda.matmul.allow_tf32"] for side, flags in stage.flags.items()} == dict.fromkeys(
        ("trusted", "candidate", "baseline"), "True"
    )
    assert stage.judge(_task("argmax"), _candidate("argmax", "return x.max(1).indices"), "k").kind == "pass"
    assert {flags["cuda.matmul.allow_tf32"] for flags in stage.flags.values()} == {"False"}


def test_a_huge_tasks_inputs_are_held_once_and_outputs_come_in_parts(lean):
    verdict = lean.judge(_task("bfloat16"), _candidate("bfloat16", KINDS["bfloat16"][3][0]), "k")
    assert verdict.kind == "pass", verdict.feedback
    _, task = lean._task
    assert task.huge and task.lean and task.reference.split is not None
    assert task.arena.nbytes < 2 * task.needs.inputs + 2**21 + 64 * 512
    assert lean.accounts.describe()["arenas_gb"]["inputs"] == pytest.approx(task.arena.nbytes / 1e9)


WRITES_LATER = """
import threading, time
def later(x):
    time.sleep(0.3)
    x.zero_()
"""


def test_who_writes_to_its_inputs_is_found(stage, lean):
    for judge in (stage, lean):
        for body in ("out = torch.relu(x) * 2; x.view(-1)[77] += 1; return out", "x.zero_(); return torch.relu(x) * 2"):
            verdict = judge.judge(_task("float16"), _candidate("float16", body), "k", timed=False)
            assert verdict.category == "input_mutated", verdict.feedback


def test_zeroed_inputs_do_not_make_zeros_right(stage, lean):
    body = "threading.Thread(target=later, args=(x,)).start(); time.sleep(0.35); return torch.zeros_like(x)"
    for judge in (stage, lean):
        verdict = judge.judge(_task("float16"), _candidate("float16", body, WRITES_LATER), "k", timed=False)
        assert verdict.category in ("input_mutated", "wrong_value"), verdict.feedback


PROFILED = """
import torch
N = 64
PROFILES = {"cpu": {"N": 32}, "full": {"N": 64}, "small": {"N": 96}}
class Model(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(width))
    def forward(self, x):
        return x * self.weight
def get_inputs():
    return [torch.randn(16, N)]
def get_init_inputs():
    return [N]
"""


@pytest.mark.parametrize(
    ("body", "category"),
    [("return self.weight * x", ""), ("return x * self.weight + float(x.shape[1] != 64)", "wrong_value")],
)
def test_sizes_that_were_not_told_are_judged_too(stage, body, category):
    task = Task(task_id="test/sizes", name="sizes", level=1, origin="test", source=PROFILED)
    candidate = (KERNEL + PROFILED).replace("class Model(", "class ModelNew(").replace("return x * self.weight", body)
    verdict = stage.judge(task, candidate, "k")
    assert (verdict.kind, verdict.category) == ("fail" if category else "pass", category), verdict.feedback
    assert "hidden" in stage.accounts.phases and stage._hidden._known
    if category:
        assert "at other sizes (N=" in verdict.feedback
