"""What the executor counts of torch's operators: values that Python is told, products, memory that nobody wrote."""

import socket

import pytest
import torch
import torch._prims

from core.evaluation import aten_costs, link
from core.evaluation import kernel_source as ks
from core.evaluation.interpreter import operators
from core.evaluation.interpreter.executor import Executor
from core.evaluation.interpreter.kernel_check import Kernels
from core.evaluation.interpreter.operators import Operators
from core.evaluation.interpreter.storages import BadReference, Storages
from core.evaluation.link import MAX_DEPTH


@pytest.fixture
def running() -> Operators:
    return Operators(Storages())


def _run(running: Operators, name: str, args: list[object], **kwargs: object) -> object:
    return running.run(name, running.answer(args), running.answer(kwargs), [])


def _told(running: Operators, name: str, *args: object, **kwargs: object) -> int:
    _run(running, name, list(args), **kwargs)
    return running.take_counts().scalars_read


def _resolved() -> list[object]:
    found = []
    for name in torch._C._dispatch_get_all_op_names():
        try:
            found.append(operators.resolve(name))
        except BadReference:
            continue
    return found


def test_every_operator_that_answers_with_a_number_tells_a_value() -> None:
    numbers = {"int", "float", "bool", "number", "Scalar"}
    asked = [
        func
        for func in _resolved()
        if any("Tensor" in str(part.type) for part in func._schema.arguments)
        and numbers & {str(part.type) for part in func._schema.returns}
    ]
    assert {"_choose_qparams_per_tensor", "item"} <= {aten_costs.operator_name(func) for func in asked}
    silent = [func for func in asked if not operators._values_told(func, aten_costs.operator_name(func), [], (1.0,))]
    assert not silent


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("prims::item", [torch.ones(())]),
        ("aten::_choose_qparams_per_tensor", [torch.ones(3)]),
        ("aten::_pack_padded_sequence", [torch.zeros(9, 1, 1), torch.tensor([4]), False]),
        ("aten::nonzero.out", [torch.ones(3)]),
        ("aten::masked_select", [torch.ones(3), torch.ones(3) > 0]),
        ("aten::repeat_interleave.Tensor", [torch.tensor([2])]),
    ],
)
def test_what_a_shape_or_a_number_tells_is_counted(running: Operators, name: str, args: list[object]) -> None:
    kwargs = {"out": torch.zeros(0, dtype=torch.int64)} if name.endswith(".out") else {}
    assert _told(running, name, *args, **kwargs) >= 1


def test_each_position_of_a_split_is_counted(running: Operators) -> None:
    name = "aten::tensor_split.tensor_indices_or_sections"
    assert _told(running, name, torch.zeros(100), torch.arange(10, 60, 5)) >= 10


def test_usual_operators_tell_nothing(running: Operators) -> None:
    x = torch.rand(4, 4)
    for name in ("aten::add.Tensor", "aten::mm", "aten::maximum"):
        assert _told(running, name, x, x) == 0
    assert _told(running, "aten::unbind.int", x) == 0
    assert _told(running, "aten::index.Tensor", x, [torch.tensor([1, 0])]) == 0
    assert _told(running, "aten::index.Tensor", x, [x[0] > 0.5]) == 1


@pytest.mark.parametrize("name", ["addmm", "addmv", "addbmm", "baddbmm"])
def test_products_in_place_cost_what_they_cost_elsewhere(name: str) -> None:
    shapes = {"addmm": [(2, 4), (2, 3), (3, 4)], "addmv": [(2,), (2, 3), (3,)]}
    tensors = [torch.rand(*s) for s in shapes.get(name, [(2, 4), (5, 2, 3), (5, 3, 4)])]
    if name == "baddbmm":
        tensors[0] = torch.rand(5, 2, 4)
    plain, in_place = (getattr(torch.ops.aten, part).default for part in (name, f"{name}_"))
    costs = [aten_costs.cost(func, tensors, {}, tensors[0]) for func in (plain, in_place)]
    assert costs[0][2] == costs[1][2] == {"addmm": 48, "addmv": 12, "addbmm": 240, "baddbmm": 240}[name]
    assert aten_costs.is_dot(name) and aten_costs.is_dot(f"{name}_")


def test_products_by_other_names_are_suspected() -> None:
    named = """
    _euclidean_dist _cdist_forward _compute_linear_combination _embedding_bag _embedding_bag_forward_only ormqr
    linalg_solve_triangular cholesky_solve linalg_lu_solve linalg_householder_product convolution_backward _foreach_mm
    affine_grid_generator lu_unpack linalg_pinv addr _weight_int4pack_mm_for_cpu an_operator_of_tomorrow
    """
    assert [name for name in named.split() if not aten_costs.may_be_product(name)] == []


def test_usual_operators_beside_a_product_are_not_suspected() -> None:
    named = """
    add add_ mul mul_ div sub relu relu_ sigmoid tanh exp gelu silu clamp clamp_ where sum mean amax max argmax softmax
    _softmax _log_softmax native_layer_norm native_group_norm native_batch_norm max_pool2d max_pool2d_with_indices
    avg_pool2d mm addmm addmm_ bmm convolution linear matmul einsum copy_ clone _to_copy empty zeros full arange cat
    stack gather scatter_add_ index_select index_put_ embedding masked_fill masked_fill_ sort topk cumsum tril triu
    dropout native_dropout bernoulli_ normal_ uniform_ exponential_ eq gt logical_and bitwise_and floor_divide pow sqrt
    rsqrt abs neg sign var var_mean std norm linalg_vector_norm _foreach_add _foreach_mul_ upsample_bilinear2d im2col
    reflection_pad2d repeat_interleave view transpose expand slice _scaled_dot_product_flash_attention_for_cpu
    """
    assert [name for name in named.split() if aten_costs.may_be_product(name)] == []


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("_softmax", 5), ("softmax", 5), ("_masked_softmax", 5), ("_native_batch_norm_legit_no_training", 8),
        ("_foreach_sigmoid_", 4), ("an_operator_of_tomorrow", 8), ("gelu_backward", 8), ("_thnn_fused_gru_cell", 8),
    ],
)  # fmt: skip
def test_what_stands_for_several_operations_counts_as_several(name: str, least: int) -> None:
    assert aten_costs.arithmetic(name) >= least


def test_what_is_one_operation_counts_as_one() -> None:
    named = "add mul_ sub relu exp sum amax copy_ clone where gather max_pool2d einsum sort _foreach_mul cumsum"
    assert [name for name in named.split() if aten_costs.arithmetic(name) != 1] == []


def test_a_list_of_tensors_costs_what_its_tensors_cost() -> None:
    given = [torch.rand(30), torch.rand(50)]
    for func in (torch.ops.aten._foreach_exp.default, torch.ops.aten._foreach_exp_.default):
        assert aten_costs.cost(func, [given], {}, None)[2] == 80


@pytest.mark.parametrize(
    ("name", "args"), [("aten::empty_permuted", [[50], [0]]), ("aten::resize_", [[50]]), ("aten::resize", [[50]])]
)
def test_memory_that_nobody_wrote_is_garbage(running: Operators, name: str, args: list[object]) -> None:
    given = [torch.zeros(0)] if "resize" in name else []
    out = _run(running, name, [*given, *args])
    assert bool(torch.isnan(out).all())


def test_grown_memory_is_garbage_and_what_was_there_stays() -> None:
    held = Storages()
    ref = held.ref(torch.ones(3))
    held.grow(ref[1], 4000)
    grown = held.tensor(["t", ref[1], "float32", [1000], [1], 0])
    assert grown[:3].tolist() == [1, 1, 1]
    assert bool(torch.isnan(grown[3:]).all())


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("_reshape_alias", [[99], [1]]), ("_reshape_alias_copy", [[99], [1]]), ("as_strided", [[99], [1]]),
        ("as_strided_copy", [[99], [1]]), ("unfold", [0, 99, 1]), ("narrow_copy", [0, 2, 99]), ("select.int", [0, 99]),
        ("split_with_sizes", [[2, 99]]), ("_unsafe_view", [[99]]), ("view_copy", [[99]]), ("slice.Tensor", [0, 9, 99]),
        ("index_select", [0, torch.tensor([99])]), ("take", [torch.tensor([99])]), ("gather", [0, torch.tensor([99])]),
        ("_unsafe_index.Tensor", [[torch.tensor([99])]]),
    ],
)  # fmt: skip
def test_no_operator_shows_memory_beyond_a_storage(running: Operators, name: str, args: list[object]) -> None:
    try:
        out = _run(running, f"aten::{name}", [torch.zeros(4), *args])
    except (BadReference, RuntimeError, IndexError):
        return
    assert all(part.numel() == 0 for part in aten_costs.tensors_in(out))


def test_values_nested_too_deeply_are_refused_where_they_arrive() -> None:
    value: object = 1
    for _ in range(MAX_DEPTH):
        value = ["l", value]
    link.decode(value, lambda part: part)
    with pytest.raises(link.Garbled):
        link.decode(["u", ["l", value]], lambda part: part)


def test_definitions_nested_too_deeply_are_refused() -> None:
    value: ks.Global = ks.Constant(value=1)
    for _ in range(MAX_DEPTH + 1):
        value = ks.Items(values=(value,))
    definition = ks.KernelDefinition(name="k", source="def k(x):\n    pass", line=1, globals={"A": value})
    with pytest.raises(ValueError, match="deeper"):
        Kernels("candidate.py").add("k", definition)


def test_no_launch_hides_behind_sixteen_others() -> None:
    definition = ks.KernelDefinition(name="k", source="def k(x, K):\n    pass", line=1, annotations={"K": "constexpr"})
    ends = socket.socketpair()
    last_seen = 0
    for _ in range(40):
        executor = Executor(link.Link(ends[0]), "candidate.py")
        executor.kernels.add("k", definition)
        kernel = executor.kernels.get("k")
        for number in (*range(32), *range(32)):
            executor._remember("k", kernel, {"x": 3, "K": number}, {})
        recorded = [launch["constants"]["K"]["value"] for launch in executor.launches]
        assert len(set(recorded)) == ks.MAX_LAUNCHES
        last_seen += 31 in recorded
    assert 5 < last_seen < 35  # half of the runs
    for end in ends:
        end.close()
