"""Random programs of torch operators, as the source of a ModelNew; each line was tried in plain torch when it was drawn.

A program draws on views, in-place changes, `out=`, indexing, factories, casts, joining and splitting, reductions,
values read into Python, and shapes that depend on values. It never reads memory that it did not write.
"""

import copy
import random

import torch

VIEWS = """
{v}.t() | {v}.transpose(0, -1) | {v}[1:] | {v}[..., ::2] | {v}[0] | {v}[-1:] | {v}.unsqueeze(1) | {v}.flatten()
{v}.expand(3, *{v}.shape) | {v}.permute(*reversed(range({v}.dim()))) | {v}.narrow(0, 0, 1) | {v}.diagonal() | {v}.mT
{v}.unfold(0, 2, 1) | {v}.unbind(0)[-1] | {v}.chunk(2)[0] | {v}.split(2)[-1] | {v}.view(-1) | {v}.squeeze()
{v}.reshape(-1, 1) | {v}.as_strided((2,), (1,)) | {v}.movedim(0, -1) | {v}.detach() | {v}[None, ..., None]
{v}.unflatten(0, (1, -1)) | {v}.swapaxes(0, 1) | {v}.tensor_split(2)[0] | {v}.select(0, 1) | {v}.broadcast_to((2, *{v}.shape))
"""
IN_PLACE = """
{v}.add_(1.5) | {v}.mul_({w}) | {v}[0] = 2.0 | {v}[..., 0] = {w}.flatten()[0] | {v}.clamp_(min=0) | {v}.zero_() | {v} += 1
{v}.fill_(3) | {v}[{v} > 1] = 0 | {v}.copy_({w}) | {v}.masked_fill_({v} < 0, 7) | {v}.t_() | {v}.unsqueeze_(0)
{v}.transpose_(0, 1) | {v}.index_fill_(0, torch.tensor([0]), 4) | {v}[[0]] = 5 | {v} *= 2 | {v}.neg_() | {v}.sub_({w})
{v}.index_add_(0, torch.tensor([0]), {w}[:1]) | {v}.scatter_(0, torch.zeros_like({v}, dtype=torch.long), 9) | {v}[1:] = {w}[1:]
{v}.squeeze_() | {v}.fill_diagonal_(1) | {v}.cumsum_(0) | {v}.data = {w}.clone()
"""
OUT = """
torch.add({v}, {w}, out=torch.zeros_like({v})) | torch.mul({v}, 2, out={v}) | torch.cat([{v}, {w}], out={v}.new_empty(0))
torch.sum({v}, 0, out=torch.zeros_like({v}[0])) | torch.max({v}, 0, out=({v}[0].clone(), torch.zeros_like({v}[0], dtype=torch.long)))
"""
FACTORIES = """
torch.zeros({n}, 3) | torch.ones({n}, dtype=torch.int32) | torch.full((2, {n}), 1.5) | torch.arange({n}) | torch.eye({n})
torch.linspace(0, 1, {n}) | torch.tensor([[1.0, 2.0], [3.0, {n}]]) | torch.tensor({n}) | torch.zeros_like({v})
{v}.new_full((2, 3), 4) | torch.empty({n}, device={v}.device).fill_(2) | torch.ones_like({v}, dtype=torch.float64)
torch.tril(torch.ones({n}, {n})) | {v}.new_tensor([1, {n}]) | torch.scalar_tensor({n}) | torch.as_tensor([{n}, 2])
torch.empty_strided((2, 3), (1, 2)).zero_() | torch.randn({n}) * 0 | torch.arange(0, {n}, 0.5) | torch.triu_indices(3, 3)
"""
CASTS = """
{v}.double() | {v}.to(torch.float16) | {v}.int() | {v}.bool() | {v}.to({w}.dtype) | {v}.type_as({w}) | {v}.to({w}) | {v}.long()
{v}.to({v}.device) | {v}.bfloat16().float() | {v}.contiguous() | {v}.clone() | {v}.to(torch.float64, copy=True) | {v} > 0
torch.result_type({v}, {w}) == {v}.dtype | {v}.float().view(torch.int32)
"""
JOINS = """
torch.cat([{v}, {w}]) | torch.stack([{v}, {v}]) | torch.cat([{v}, {w}], -1) | torch.where({v} > 0, {v}, {w}) | {v} @ {w}.mT
torch.stack([{v}, {v}], 1) | {v}.repeat(2, 1) | {v}.roll(1, 0) | {v}.gather(0, torch.zeros_like({v}, dtype=torch.long))
{v}.index_select(0, torch.tensor([0, 0])) | {v}[torch.tensor([0, 1, 0])] | {v}.flip(0) | torch.maximum({v}, {w}) | {v} - {w}
torch.outer({v}.flatten(), {w}.flatten()) | {v} * {w} | torch.einsum("ij,kj->ik", {v}, {w}) | {v}.repeat_interleave(2, 0)
{v}.sort(0)[0] | {v}.topk(1, 0)[1] | torch.nn.functional.pad({v}, (1, 2)) | torch.broadcast_tensors({v}, {w})[1]
torch.hstack([{v}, {w}]) | torch.atleast_2d({v}) | torch.nn.functional.linear({v}, {w}) | torch.tensor_split({v}, 2)[1]
"""
REDUCTIONS = """
{v}.sum() | {v}.float().mean(0) | {v}.amax(-1) | {v}.argmax() | {v}.cumsum(0) | torch.softmax({v}.float(), -1) | {v}.max(0)[0]
torch.var_mean({v}.float(), 0)[1] | {v}.any() | torch.relu({v}) | {v}.norm() | torch.aminmax({v})[0] | {v}.prod(0) | ({v} > 0).sum()
torch.nn.functional.layer_norm({v}.float(), {v}.shape[-1:]) | torch.nn.functional.gelu({v}.float()) | {v}.float().median()
"""
VALUES = """
{w} * float({v}.sum()) | {w} + {v}.max().item() | {v} if {v}.sum() > 0 else {w} | {w}[: int({v}.flatten()[0]) % 3 + 1]
torch.tensor({v}.flatten()[:4].tolist()) | torch.zeros({v}.shape[0], len({w})) | {w} * bool({v}.any()) | torch.equal({v}, {w}) + {v}
sum(row.sum() for row in {v}) | torch.allclose({v}, {v}) * {w} | {v}.flatten()[0].tolist() * {w} | {w} / max(1, {v}.numel())
"""
SHAPED = """
{v}[{v} > 0] | torch.nonzero({v}) | torch.masked_select({v}, {v} > 0) | torch.unique({v}) | torch.where({v} > 0)[0]
torch.bincount({v}.flatten().long().abs() % 5) | torch.argwhere({v} > 0) | {v}[{v}.bool()].sum() | torch.unique({v}, return_counts=True)[1]
{v}.nonzero(as_tuple=True)[0] | {v}.flatten()[torch.nonzero({v}.flatten() > 0).squeeze(1)]
"""
GROUPS = [[part.strip() for part in text.replace("\n", "|").split("|") if part.strip()]
          for text in (VIEWS, IN_PLACE, OUT, FACTORIES, CASTS, JOINS, REDUCTIONS, VALUES, SHAPED)]  # fmt: skip
LARGEST = 2000


def inputs(seed: int) -> list[torch.Tensor]:
    """Three small tensors."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(4, 4, generator=generator)
    return [x, torch.randn(6, 4, generator=generator).round(), torch.randint(-3, 9, (4, 4), generator=generator)]


def program(seed: int, lines: int = 24) -> str:
    """The source of a ModelNew whose forward(a, b, c) returns all tensors that it made."""
    rng = random.Random(seed)
    names = {name: value.clone() for name, value in zip("abc", inputs(seed), strict=True)}
    text: list[str] = []
    for _ in range(20 * lines):
        if len(text) == lines:
            break
        template = rng.choice(rng.choice(GROUPS))
        v, w = rng.choice(list(names)), rng.choice(list(names))
        line = template.format(v=v, w=w, n=rng.randint(2, 6))
        statement = any(mark in line for mark in (" = ", " += ", " *= "))
        made = f"v{len(text)}"
        if _runs(line if statement else f"{made} = {line}", copy.deepcopy(names)):
            text.append(line if statement else f"{made} = {line}")
            exec(text[-1], {"torch": torch}, names)
    body = "\n        ".join(text)
    return (
        "import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, a, b, c):\n"
        f"        {body}\n        return {', '.join(names)}\n"
    )


def _runs(line: str, names: dict[str, torch.Tensor]) -> bool:
    """Whether the line runs on copies (that share memory as the originals do), and makes a tensor that is small."""
    try:
        exec(line, {"torch": torch}, names)
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError):
        return False
    return all(isinstance(x, torch.Tensor) and x.numel() <= LARGEST for x in names.values())
