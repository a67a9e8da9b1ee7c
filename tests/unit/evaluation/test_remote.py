"""A host's tensors without data behave as torch's own: programs give the same results through the link."""

from collections.abc import Callable
from typing import Any

import pytest
import random_programs
import workbench

FROM_NUMBERS = """
return torch.tensor([[1.0, 2.0], [3.0, 2.0]]), torch.tensor(True), torch.tensor([]), torch.tensor(2**40)
return torch.tensor([1.5, 2.0], device="cuda" if a.is_cuda else "cpu")
return torch.tensor(3, device=a.device), torch.as_tensor([1.0, 2], device=a.device), torch.asarray([1, 2])
return torch.as_tensor([5, 2], dtype=torch.float16), c.new_tensor([1, 2]), a.new_tensor(4.5), a.new_tensor([[1]])
return torch.tensor([a[0, 0], a[1, 1]]), torch.tensor(c[0].tolist()), torch.as_tensor(a)
return torch.FloatTensor([1, 2]), torch.LongTensor([1, 2, 3]), torch.Tensor([1.5, 2])
return torch.from_numpy(__import__("numpy").array([1, 2, 3])).to(a.device), torch.tensor(__import__("numpy").array([1.0, 2]))
return torch.stack([torch.tensor(i) for i in range(3)]), torch.scalar_tensor(4)
"""
INDICES = """
a[[0]] = 5; return a
a[[0, 2]] = b[[1, 3]]; return a, a[[]], a[[True, False, True, False]]
a[:, [0, 1]] += 1; return a, a[[0, 1], [1, 0]], a[torch.tensor([0, 1, 0])]
a[a > 0] = 0; a[c > 1] = torch.tensor(4.0); return a, a[True], a[None, ..., 0]
return a[int(c[0, 0]) % 3], a[a.argmax() // 4], a.index_select(0, torch.tensor([0, 0]))
"""
RESIZED = """
return torch.cat([a, b], out=a.new_empty(0))
out = torch.empty(0); torch.add(a, 1, out=out); out.mul_(2); return out, out.t()
return torch.max(a, 0, out=(torch.empty(0), torch.empty(0, dtype=torch.long)))
x = a.resize_(2, 2); return x, a
"""
COMPLEX = """
z = torch.complex(a, b[:4]); return z.conj(), z.conj() * 2, z.conj().imag, z.mH @ z, z.real, z.conj().resolve_conj()
return torch.fft.fft(a), torch.view_as_real(torch.complex(a, a)), torch.polar(a, a), -torch.complex(a, a).conj()
"""
ALIASES = """
v = a[1:]; v.add_(1); w = v.t(); w[0] = 7; return a, v, w
x = a.T.contiguous(); x[1].mul_(2); y = a.expand(2, 4, 4).clone(); return x, y, a
p = torch.nn.Parameter(a); p.data = b.clone(); p.data[0] = 1; return p.detach(), a, p.shape[0] * a
a.copy_(c); b.t_(); c.unsqueeze_(0); a.set_(a.untyped_storage()) if False else a; return a, b, c
"""
GROUPS = {"numbers": FROM_NUMBERS, "indices": INDICES, "resized": RESIZED, "complex": COMPLEX, "aliases": ALIASES}
CASES = [
    pytest.param(line, id=f"{name}{number}")
    for name, text in GROUPS.items()
    for number, line in enumerate(text.strip().splitlines())
]


def _model(body: str) -> str:
    return f"import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, a, b, c):\n        {body}\n"


@pytest.mark.parametrize("body", CASES)
def test_a_line_computes_what_torch_computes(bench: Callable[..., Any], body: str) -> None:
    assert bench(workbench.difference, _model(body), random_programs.inputs(1)) == ""


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, of what the programs do: they are odd on purpose
@pytest.mark.parametrize("seed", range(40))
def test_a_program_computes_what_torch_computes(bench: Callable[..., Any], seed: int) -> None:
    source = random_programs.program(seed)
    assert bench(workbench.difference, source, random_programs.inputs(seed)) == "", source


def test_programs_draw_on_everything() -> None:
    text = "".join(random_programs.program(seed, lines=12) for seed in range(20))
    for word in ("[1:]", "_(", "out=", "nonzero", "[torch.", "torch.cat", "stack", ".to(", "arange", "sum(", "float("):
        assert word in text, word


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("return a @ b", "RuntimeError: "),
        ("return a.view(3, 3)", "RuntimeError: "),
        ("return a[9]", "IndexError: "),
        ("return a.numpy()", "DataEscapeError: numpy() takes the data out of torch"),
        ("return torch.randn(500).tolist()", "DataEscapeError: tolist() of 500 elements"),
        ("return torch.ones(2, device='meta')", "RuntimeError: a tensor on device 'meta' holds no data"),
        ("return a.as_strided((99,), (1,)) + 1", "RuntimeError: "),
        ("raise KeyError('mine')", "KeyError: 'mine'"),
    ],
)
def test_errors_are_torchs_own(bench: Callable[..., Any], body: str, error: str) -> None:
    inputs = [[[1.0, 2.0, 3.0]] * 2, [[1.0, 2.0]] * 2, [[1]]]
    assert str(bench(workbench.forward, _model(body), *inputs)).startswith(error)
