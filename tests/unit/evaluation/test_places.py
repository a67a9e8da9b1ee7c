"""What would lie on the host of a machine with a GPU: no kernel gets it, and no output is it."""

import pytest

from core.tasks.task import Task

TASK = Task(
    task_id="test/places", name="places", level=1, origin="test",
    source="""
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return x * 2 + 1
def get_inputs():
    return [torch.randn(16, 60)]
def get_init_inputs():
    return []
""",
)  # fmt: skip
CANDIDATE = """
import torch, triton, triton.language as tl
@triton.jit
def kernel(x_ptr, o_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(o_ptr + i, tl.load(x_ptr + i, mask=i < n) * 2 + 1, mask=i < n)
def run(x, out):
    kernel[(triton.cdiv(x.numel(), 256),)](x, out, x.numel(), BLOCK=256)
    return out
TABLE = torch.zeros(16, 60)
class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        {made}
    def forward(self, x):
        {body}
"""
ON_THE_GPU = {
    "empty_like": "return run(x, torch.empty_like(x))",
    "the device of another": "return run(x, torch.empty(x.shape, device=x.device))",
    "cuda by name": "return run(x, torch.empty(x.shape, device='cuda'))",
    "cuda by number": "return run(x, torch.empty(x.shape, device=0))",
    "moved by cuda()": "return run(x.cuda(), torch.empty(x.shape).cuda())",
    "moved to a device": "return run(x, torch.zeros(x.shape).to(x.device))",
    "moved to another tensor": "return run(x, torch.zeros(x.shape).to(x))",
    "moved by type_as": "return run(x, torch.empty(x.shape).type_as(x))",
    "there and back": "return run(x.cpu().cuda(), x.new_empty(x.shape))",
    "a context": "\n        with torch.device('cuda'):\n            out = torch.empty(x.shape)\n        return run(x, out)",
    "numbers": "return run(x, torch.tensor([[0.0] * 60] * 16, device=x.device))",
    "new_tensor": "return run(x, x.new_tensor([[0.0] * 60] * 16))",
    "of the module": "return run(x, TABLE.to(x.device))",
    "a view": "return run(x, torch.empty(x.numel(), device=x.device).view(16, 60))",
    "what is said of it": """
        here = torch.empty(1)
        assert x.is_cuda and x.device.type == "cuda" and x.get_device() == 0 and not x.is_cpu
        assert here.is_cpu and here.device.type == "cpu" and here.get_device() == -1 and not here.is_cuda
        return run(x, torch.empty_like(x))""",
}
MADE = {
    "in the constructor": ("self.t = torch.empty(16, 60)", "return run(x, self.t.clone())"),
    "a buffer": (
        "self.register_buffer('t', torch.empty(16, 60, device='cpu'), persistent=False)",
        "return run(x, torch.empty_like(self.t))",
    ),
    "a default": ("torch.set_default_device('cuda')", "return run(x, torch.empty(x.shape))"),
}
ON_THE_HOST = {
    "no device": ("return run(x, torch.empty(x.shape))", "launch_error"),
    "like one without": ("return run(x, torch.empty_like(torch.empty(x.shape)))", "launch_error"),
    "a view of one": ("return run(x, torch.empty(x.numel()).view(16, 60))", "launch_error"),
    "from numbers": ("return run(x, torch.tensor([[0.0] * 60] * 16))", "launch_error"),
    "made at import": ("return run(x, TABLE)", "launch_error"),
    "an input moved": ("return run(x.cpu(), torch.empty_like(x))", "launch_error"),
    "an input moved by to()": ("return run(x.to('cpu'), torch.empty_like(x))", "launch_error"),
    "returned": ("return run(x, torch.empty_like(x)).cpu()", "wrong_type"),
    "returned by to()": ("return run(x, torch.empty_like(x)).to(device='cpu')", "wrong_type"),
    "pinned": ("return run(x, torch.empty(x.shape, pin_memory=True))", "wrong_type"),
    "a second GPU": ("return run(x, torch.empty_like(x)).to('cuda:1')", "runtime_error"),
    "made on a second GPU": ("return run(x, torch.empty(x.shape, device='cuda:1'))", "runtime_error"),
}


@pytest.mark.parametrize("name", [*ON_THE_GPU, *MADE])
def test_what_is_on_the_gpu_passes(judge, name):
    made, body = MADE.get(name) or ("pass", ON_THE_GPU[name])
    verdict = judge.judge(TASK, CANDIDATE.format(made=made, body=body), "k")
    assert verdict.kind == "pass", verdict.feedback


@pytest.mark.parametrize("name", ON_THE_HOST)
def test_what_is_on_the_host_is_refused_with_words_that_help(judge, name):
    body, category = ON_THE_HOST[name]
    verdict = judge.judge(TASK, CANDIDATE.format(made="pass", body=body), "k")
    assert (verdict.kind, verdict.category) == ("fail", category), verdict.feedback
    wanted = {"launch_error": "device=x.device", "wrong_type": "on the CPU", "runtime_error": "no cuda:1"}[category]
    assert wanted in verdict.feedback.replace("…", "")


def test_modules_made_in_forward_go_where_they_are_moved(judge):
    """torch refused `.to(device)` of a module, since the device that all have here holds no data."""
    body = """
        net = torch.nn.Linear(2, 2)
        assert net.weight.is_cpu and net.to(x.device) is net and net.weight.is_cuda
        assert net.to(torch.float16).weight.dtype == torch.float16 and net.cpu().weight.is_cpu
        assert net.to(x).weight.dtype == torch.float32 and net.weight.is_cuda and net.cpu().cuda().bias.is_cuda
        return run(x, torch.empty_like(x))"""
    verdict = judge.judge(TASK, CANDIDATE.format(made="pass", body=body), "k")
    assert verdict.kind == "pass", verdict.feedback
