"""Who did the work: rules over profiles, without a GPU."""

from types import SimpleNamespace

import msgspec
import pytest
import torch

from core.evaluation.findings import Finding
from core.evaluation.gpu import afresh as gpu_afresh
from core.evaluation.gpu import honesty as gpu_honesty
from core.evaluation.gpu import profile as gpu_profile
from core.evaluation.gpu import work as gpu_work
from core.evaluation.gpu.work import Names, Profile, Row

SOURCE = """
import triton
@triton.jit
def softmax_kernel(x_ptr): ...
@triton.jit
def triton_poi_fused_relu_0(x_ptr): ...
@triton.jit
def vectorized_elementwise_kernel(x_ptr): ...
CUDA = '''
namespace mine { template <int N> __global__ void product_kernel(const float* a) {} }
'''
"""
RELU = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::launch_clamp_scalar(at::TensorIteratorBase&)>(int)"
)
COPY = "void at::native::elementwise_kernel<128, 2, at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)>(int)"
GEMM = "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NNT"
SGEMM = "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x128_8x5_nn_align1>(Params)"


def profile(*rows, busy_ms=None, launches=1, beside_ms=0.0):
    made = tuple(Row(name, 1, us) for name, us in rows)
    busy = sum(us for _, us in rows) / 1e3 if busy_ms is None else busy_ms
    return Profile(busy_ms=busy, rows=made, launches=launches, beside_ms=beside_ms)


BASE = profile((SGEMM, 1000.0), (RELU, 50.0))


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("softmax_kernel", True),
        ("triton_poi_fused_relu_0", False),  # Inductor's way to name: it can't be told apart
        (RELU, False),  # the candidate's own kernel of that name has no namespace
        ("void mine::product_kernel<4>(float const*)", True),
        ("void (anonymous namespace)::product_kernel<4>(float const*)", True),
        ("void at::native::product_kernel<4>(float const*)", False),
        (GEMM, False),
        ("another_kernel", False),
        ("Memcpy DtoD (Device -> Device)", False),
    ],
)
def test_own_kernels_are_those_that_the_source_defines(name, own) -> None:
    assert Names(SOURCE, "cuda").own(name) is own


def test_words_of_a_triton_source_are_no_kernels_of_cuda() -> None:
    assert not Names(SOURCE, "triton").own("void product_kernel<4>(float const*)")


@pytest.mark.parametrize(
    ("mine", "category"),
    [
        (profile(("softmax_kernel", 300.0)), None),
        (profile(("softmax_kernel", 300.0), (RELU, 50.0), (COPY, 900.0)), None),
        (profile((GEMM, 300.0)), "no_kernel"),
        (profile(), "no_kernel"),
        (profile((SGEMM, 1000.0), ("softmax_kernel", 5.0)), "torch_fallback"),
        # A quarter of the reference's time in a faster precision is still all of the matrix work.
        (profile((GEMM, 250.0), ("softmax_kernel", 50.0)), "torch_fallback"),
        # Time that is burnt beside does not dilute it.
        (profile((SGEMM, 900.0), ("softmax_kernel", 9000.0)), "torch_fallback"),
        (profile(("Memcpy DtoH (Device -> Pageable)", 2000.0), ("softmax_kernel", 5.0)), "torch_fallback"),
        (profile(("softmax_kernel", 300.0), beside_ms=0.25), "tampering"),
    ],
)
def test_library_kernels_may_do_a_part_only(mine, category) -> None:
    finding = gpu_work.check(SOURCE, "triton", mine, BASE)
    assert (finding.category if finding else None) == category


def test_copies_count_where_the_reference_only_copies() -> None:
    mine = profile((COPY, 60.0), ("softmax_kernel", 60.0))
    assert gpu_work.check(SOURCE, "triton", mine, profile((RELU, 60.0))) is None
    finding = gpu_work.check(SOURCE, "triton", mine, profile((COPY, 60.0)))
    assert finding is not None and finding.category == "torch_fallback"


@pytest.mark.parametrize(
    ("busy_ms", "runtime_ms", "rows", "category"),
    [
        (1.0, 1.02, ["softmax_kernel"], None),
        (1.0, 0.9, ["softmax_kernel"], None),
        (1.0, 0.2, ["softmax_kernel"], "tampering"),  # other work while profiled than while timed
        (0.005, 0.05, ["softmax_kernel"], None),  # bound by launches
        (1.0, 40.0, ["softmax_kernel"], "tampering"),  # hidden from the profiler
        (1.0, 40.0, ["softmax_kernel", "Memcpy DtoH (Device -> Pageable)"], "data_escape"),
    ],
)
def test_the_profile_must_agree_with_the_parents_clock(busy_ms, runtime_ms, rows, category) -> None:
    mine = profile(*((name, 1.0) for name in rows), busy_ms=busy_ms)
    finding = gpu_work.check(SOURCE, "triton", mine, BASE, runtime_ms)
    assert (finding.category if finding else None) == category


@pytest.mark.parametrize(
    ("share", "held_back", "launches", "decoy"),
    [
        (1.0, 1, 1, True),
        (0.9, 1, 1, False),
        (1.0, 1, 2, False),  # not all were held back: nothing is known
        (1.0, 0, 0, False),  # a graph replays its kernels
        (1.0, 0, 1, True),  # launched with new values, remembered with old ones
    ],
)
def test_ghost_run_finds_decoys(share, held_back, launches, decoy) -> None:
    finding = gpu_work.ghost(share, held_back, profile(("softmax_kernel", 1.0), launches=launches))
    assert (finding is not None and finding.category == "decoy_kernel") is decoy


ROWS = [12.0, [["fill", 1, 10.0], ["softmax_kernel", 2, 2.0]], 0.0]
ALONE = [10.0, [["fill", 1, 10.0]], 0.0]


def test_flushes_are_taken_off() -> None:
    found = gpu_work.read([ROWS, ALONE, 2])
    assert isinstance(found, Profile)
    assert [(row.name, row.count, row.us) for row in found.rows] == [("softmax_kernel", 2, 2.0)]
    assert found.busy_ms == pytest.approx(0.002) and found.launches == 2


@pytest.mark.parametrize(
    "answer",
    [
        None, [], [ROWS, ALONE], [ROWS, ALONE, "2"], [[float("nan"), [], 0.0], ALONE, 1],
        [[1.0, [["k", -1, 2.0]], 0.0], ALONE, 1], [[1.0, [["k", 1, float("inf")]], 0.0], ALONE, 1],
        [[1.0, [["k", 1, 1.0]] * 5000, 0.0], ALONE, 1], {"busy": 1},
    ],
)  # fmt: skip
def test_what_is_no_profile_is_tampering(answer) -> None:
    found = gpu_work.read(answer)
    assert isinstance(found, Finding) and found.category == "tampering"


def test_lines_for_feedback_are_few_and_name_the_candidates_kernels() -> None:
    mine = profile(("softmax_kernel", 83.0), (RELU, 12.0), (COPY, 5.0), ("k" * 300, 1.0))
    text = gpu_work.lines(SOURCE, "triton", mine, BASE, most=2)
    assert text.startswith("kernels: your softmax_kernel 82%, vectorized_elementwise_kernel")
    assert len(text.splitlines()) == 2 and len(text) < 300


def test_profile_of_the_host_lists_operators() -> None:
    x = torch.ones(1000)
    busy, rows, _ = gpu_profile.rows("cpu", lambda: torch.relu(x) @ x)
    assert busy > 0 and {"aten::relu", "aten::dot"} <= {name for name, _, _ in rows}


def test_work_beside_the_first_kernel_is_measured() -> None:
    spans = [(0, 100_000, "fill"), (20_000, 60_000, "a"), (90_000, 150_000, "b"), (200_000, 300_000, "c")]
    assert gpu_profile._beside_first_us(spans, 1) == pytest.approx(50.0)
    assert gpu_profile._union_us([span[:2] for span in spans]) == pytest.approx(250.0)


def test_values_that_were_not_finite_do_not_make_a_ghost_right() -> None:
    before = torch.tensor([1.0, float("nan"), -2.0, 0.0], dtype=torch.float64)
    assert gpu_honesty.same_share(before.clone(), before) == 1.0
    assert gpu_honesty.same_share(torch.full_like(before, float("nan")), before) == 0.0
    assert gpu_honesty.same_share(before, torch.full_like(before, float("nan"))) == 0.0


def test_watched_extension_spoils_what_it_wrote_in_the_ghost_run() -> None:
    watch = gpu_profile.Watch()
    calls = []

    def double(x, out):
        calls.append(1)
        out.copy_(2 * x)
        return out + 1

    double = watch.wrapped(double)
    x, out = torch.ones(3), torch.zeros(3)
    assert double(x, out).tolist() == [3.0] * 3 and out.tolist() == [2.0] * 3
    with watch.holding_back():
        result = double(x, torch.zeros(3))
    assert result.isnan().all() and x.tolist() == [1.0] * 3
    assert (watch.held_back, watch.launched, len(calls)) == (1, 2, 2)


SHARES = gpu_work.Shares(total_ms=1.0, own_ms=0.95, launches=1, late_ms=1.0)
TRITON = "import triton"


@pytest.mark.parametrize(
    ("source", "changed", "wanted"),
    [
        (TRITON, {}, True),
        (TRITON, {"own_ms": 0.4}, False),  # something else takes most of it
        (TRITON, {"own_ms": 1.9}, False),  # launches side by side
        (TRITON, {"launches": 0}, False),
        (TRITON, {"replays": 1}, False),  # what runs in a graph is not seen
        (TRITON, {"total_ms": 2.0, "own_ms": 1.95}, False),  # dearer than when it was timed
        (TRITON, {"total_ms": 0.4, "own_ms": 0.39}, False),  # and cheaper
        (TRITON, {"late_ms": 0.05}, False),  # it does not wait for what came before
        (TRITON, {"late_ms": float("nan")}, False),
        ("torch.compile(f)", {}, False),  # launches that the source does not define
        ("triton.knobs.runtime.launch_enter_hook = library", {}, False),  # work between a launch's events
        ("kernel.add_pre_run_hook(library)", {}, False),
        ("CudaLauncher.__call__.__closure__[0]", {}, False),  # what counts the launches
        ("getattr(triton, name)", {}, False),
        ("for thing in gc.get_objects(): ...", {}, False),
        ("sys._getframe(1)", {}, False),
        ("running = launched + 1  # system", {}, True),
    ],
)
def test_a_profile_is_left_out_only_where_no_question_is_open(source, changed, wanted) -> None:
    shares = msgspec.structs.replace(SHARES, **changed)
    assert gpu_work.clearly_own(source, shares, eager_ms=1.2, runtime_ms=1.0) is wanted


def test_own_kernels_beside_a_slow_reference_are_held_against_their_own_time_too() -> None:
    shares = gpu_work.Shares(total_ms=1.0, own_ms=0.6, launches=1, late_ms=1.0)
    assert not gpu_work.clearly_own(TRITON, shares, eager_ms=10.0, runtime_ms=1.0)


@pytest.mark.parametrize(
    ("new", "known", "wanted"),
    [
        ([1.3, 1.25, 1.22], [1.2, 1.22, 1.25], False),
        ([1.9, 1.8, 1.85], [1.2, 1.22, 1.25], True),
        ([1.9, 1.21, 1.85], [1.2, 1.22, 1.25], False),  # one that is not dearer is enough
        ([1.29, 1.3, 1.5], [1.2, 1.22, 1.25], False),  # a clock's own noise
        ([1.4, 1.45, 1.5], [1.2, 1.22, 1.25], True),
    ],
)
def test_new_values_may_cost_no_more(new, known, wanted) -> None:
    assert gpu_afresh.is_dearer(new, known, runtime_ms=0.2) is wanted


def test_zeros_that_kernels_add_to_are_no_answer_without_them():
    """A one-hot or a histogram is zero at most places: a ghost run that leaves zeros is not mostly right."""
    before = torch.zeros(1000, dtype=torch.float64)
    before[::50] = 3.0
    assert gpu_honesty.same_share(torch.zeros_like(before), before) == 0.0
    assert gpu_honesty.same_share(before.clone(), before) == 1.0
    assert gpu_honesty.same_share(torch.zeros(64), torch.zeros(64)) == 0.0


@pytest.mark.parametrize("trues", [0.02, 0.38, 0.6, 0.97, 1.0])
@pytest.mark.parametrize("honest", [True, False])
def test_memory_that_happens_to_hold_the_answer_is_no_answer(trues, honest):
    """Free memory is filled, which reads as true in booleans: a ghost run of an honest kernel leaves it, and is not
    right by that; torch's comparison is right whatever the memory held."""
    right = torch.rand(4096, generator=torch.Generator().manual_seed(1)) < trues
    fills = []

    class Child:
        def within(self, wall_s):
            pass

        def ask(self, order, *arguments):
            if order == "poison":
                fills.append(arguments[1])
            elif order == "call":
                self.output = right
            elif order == "ghost":
                self.output = torch.full_like(right, bool(fills[-1])) if honest else right
                return [None, 1]
            elif order == "flushes":
                out.sampled = self.output[out.chosen]

    class Out:
        def choose(self, places, rng):
            self.chosen = torch.tensor(rng.choices(range(len(right)), k=512))

        def sample_trees(self):
            return [], []

        def samples(self, calls):
            return [self.sampled[None]]

    out = Out()
    task = SimpleNamespace(device="cpu", reference=SimpleNamespace(outputs=[right], training=False))
    share, held_back = gpu_honesty.ghost_share(task, Child(), out, [])
    found = gpu_work.ghost(share, held_back, Profile(busy_ms=1.0, rows=(), launches=1))
    assert (found is None) == honest
    assert len(fills) <= 2
