"""A judge's worker asks torch for shapes and imports no compiler for that."""

import json
import subprocess
import sys
from pathlib import Path

import torch

from core.evaluation.reference import Reference

ROOT = Path(__file__).parents[3]
TASK = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(6, 6)
    def forward(self, x):
        y = torch.nn.functional.gelu(torch.softmax(self.linear(x), -1) + torch.relu(x).sum(-1, keepdim=True))
        return torch.where(y > 0, torch.sigmoid(y), torch.clamp(y, max=1.0)).sqrt()
def get_inputs():
    return [torch.randn(4, 6)]
def get_init_inputs():
    return []
"""
ASKED = f"""
import json, sys
import torch
from core.evaluation import meta_operators
meta_operators.need_no_compiler()
from core.evaluation.reference import Reference
full = Reference({TASK!r}, "t", "cpu").full_work()
imported = "torch._dynamo" in sys.modules
compiled = torch.compile(torch.nn.functional.softplus, backend="eager")(torch.ones(3))
print(json.dumps([imported, full.operators, full.dot_flops, full.other_flops, compiled.tolist()]))
"""


def test_work_is_counted_alike_and_the_compiler_comes_when_it_is_called():
    done = subprocess.run([sys.executable, "-c", ASKED], cwd=ROOT, capture_output=True, text=True, check=True)
    imported, operators, *flops, compiled = json.loads(done.stdout.splitlines()[-1])
    assert not imported
    usual = Reference(TASK, "t", "cpu").full_work()
    assert tuple(map(tuple, operators)) == usual.operators and len(operators) > 5
    assert flops == [usual.dot_flops, usual.other_flops]
    assert compiled == torch.nn.functional.softplus(torch.ones(3)).tolist()
