import textwrap

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.tasks.compose import compose
from core.tasks.format import TaskError
from core.tasks.graph import INPUT, canonical
from core.tasks.structure import structure_of


def task(forward: str, *, init: str = "", args: str = "x", module: str = "") -> str:
    """A source with this body of forward."""
    indented = textwrap.indent(textwrap.dedent(forward), " " * 8)
    constructor = textwrap.indent(textwrap.dedent(init), " " * 8) if init else "        pass\n"
    return (
        "import math\nimport torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n"
        f"{textwrap.dedent(module)}\nclass Model(nn.Module):\n    def __init__(self, width=4):\n"
        f"        super().__init__()\n{constructor}\n    def forward(self, {args}):\n{indented}\n"
        "def get_inputs():\n    return [torch.randn(3)]\n\ndef get_init_inputs():\n    return []\n"
    )


@pytest.mark.parametrize(
    ("forward", "wanted"),
    [
        ("return torch.relu(x) * 2 + 1", "add(c,mul(c,relu(i0)))"),
        ("y = F.gelu(x)\nreturn y @ y.t()", "matmul(gelu(i0),transpose(#1))"),
        ("y = x.view(3, -1).contiguous()\nreturn torch.sum(y, dim=1)", "sum(reshape(i0))"),
        ("h = x.shape[0] // 2\nreturn x[:h], x[h:]", "index(i0);#0"),
        ("a, b = x.chunk(2, dim=-1)\nreturn F.silu(a) * b", "mul(part1(chunk(i0)),silu(part0(#2)))"),
        ("for _ in range(5):\n    x = torch.tanh(x)\nreturn x", "loop(tanh(i0))"),
        ("if x.sum() > 0:\n    x = -x\nreturn x", "if(neg(i0),i0)"),
        ("return [torch.exp(y) for y in (x, x.abs())]", "exp(i0);exp(abs(i0))"),
        ("x += 1\nx -= x.mean()\nreturn x", "sub(add(c,i0),mean(#1))"),
        ("return (lambda y: y * y)(torch.sin(x))", "mul(sin(i0),#1)"),
        ("return x * math.sqrt(x.size(-1))", "mul(c,i0)"),
        ("raise NotImplementedError", ""),
    ],
)
def test_structure_of_small_programs(forward, wanted):
    assert structure_of(task(forward)) == wanted


def test_modules_functions_and_methods_of_one_operator_are_the_same():
    module = task("return self.act(self.norm(x))", init="self.norm = nn.LayerNorm(width)\nself.act = nn.ReLU()")
    function = task(
        "return F.relu(F.layer_norm(x, (4,), self.w, self.b))",
        init="self.w = nn.Parameter(torch.ones(width))\nself.register_parameter('b', nn.Parameter(torch.zeros(width)))",
    )
    stack = task("return self.net(x)", init="self.net = nn.Sequential(nn.LayerNorm(width), nn.Identity(), nn.ReLU())")
    method = task("x = F.layer_norm(x, (4,))\nreturn x.relu_()")
    assert {structure_of(source) for source in (module, function, stack, method)} == {"relu(layernorm(i0))"}


def test_helpers_local_classes_and_inheritance_are_followed():
    source = task(
        "return scaled(self.block(x), factor=3.0)",
        init="self.block = Block(width)",
        module="""
        def scaled(x, factor=1.0):
            return torch.sigmoid(x) * factor

        class Base(nn.Module):
            def __init__(self, width):
                super().__init__()
                self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(3)])
                self.scale = nn.Parameter(torch.ones(1))

        class Block(Base):
            def __init__(self, width):
                super().__init__(width)

            def forward(self, x):
                for layer in self.layers:
                    x = layer(x) * self.scale
                return x
        """,
    )
    assert structure_of(source) == "mul(c,sigmoid(mul(linear(i0),w0)))"


def test_names_constants_layout_and_sizes_make_no_difference():
    one = task("y = torch.softmax(x * 0.5, dim=-1)\nreturn y + z", args="x, z")
    other = task(
        "# other\nscores = x.mul(2.0)\nweights = F.softmax(\n    scores, dim=0\n)\nreturn bias + weights",
        args="x, bias",
    )
    assert structure_of(one) == structure_of(other)
    assert structure_of(one) != structure_of(task("return torch.softmax((x + z) * 0.5, dim=-1)", args="x, z"))


def test_recursion_and_strange_syntax_end():
    source = task(
        "return again(x)",
        module="""
        def again(x):
            return again(x.exp()) if x.sum() > 0 else x
        """,
    )
    assert structure_of(source).count("exp") >= 1
    assert "walrus" not in structure_of(
        task("if (walrus := x.max()) > 0:\n    x = x / walrus\nreturn {'out': x, **{}}")
    )


def test_composed_tasks_know_the_structure_of_their_source():
    for composition in compose(seed=21, count=150):
        assert structure_of(composition.source) == composition.structure


def test_sources_that_lack_parts_are_refused_by_name():
    with pytest.raises(TaskError, match=r"^bad\.py: the source lacks a class Model and a function get_inputs\(\)"):
        structure_of("def get_init_inputs():\n    return []\n", "bad.py")


@st.composite
def graphs(draw):
    """Nodes over two inputs with random wiring, each using earlier nodes."""
    nodes = [(INPUT, ()), (INPUT, ())]
    for _ in range(draw(st.integers(1, 6))):
        operator = draw(st.sampled_from(["add", "mul", "sub", "relu"]))
        arity = 1 if operator == "relu" else 2
        nodes.append((operator, tuple(draw(st.integers(0, len(nodes) - 1)) for _ in range(arity))))
    return nodes


@settings(max_examples=150, deadline=None)
@given(graphs(), st.randoms(use_true_random=False))
def test_canonical_text_does_not_depend_on_the_order_of_nodes_and_operands(nodes, rng):
    order: list[int] = []
    while len(order) < len(nodes):
        ready = [index for index in range(len(nodes)) if index not in order and set(nodes[index][1]) <= set(order)]
        order.append(rng.choice(ready))
    where = {old: new for new, old in enumerate(order)}
    shuffled = []
    for old in order:
        operator, operands = nodes[old]
        moved = [where[operand] for operand in operands]
        shuffled.append(
            (operator, tuple(reversed(moved)) if operator in ("add", "mul") and rng.random() < 0.5 else tuple(moved))
        )
    root = len(nodes) - 1
    assert canonical(shuffled, [where[root]]) == canonical(nodes, [root])


def test_inputs_that_look_alike_are_told_apart_by_their_use():
    x, y = (INPUT, ()), (INPUT, ())
    left = canonical([x, y, ("add", (0, 1)), ("mul", (2, 0))], [3])
    right = canonical([x, y, ("add", (1, 0)), ("mul", (1, 2))], [3])
    assert left == right == "mul(add(i0,i1),i0)"


def test_canonical_text_of_deep_graphs_is_written_without_recursion():
    nodes = [(INPUT, ())] + [("relu", (index,)) for index in range(5000)]
    assert canonical(nodes, [5000]).count("relu(") == 5000
