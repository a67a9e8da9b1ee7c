"""The least time of a task: only what no honest kernel can leave out counts."""

import pytest

from core.evaluation import roofline
from core.evaluation.gpu.floor import STRASSEN, Floor, floor_of, rate_tflops
from core.evaluation.gpu.task import GpuTask
from core.evaluation.roofline import Roofline, of_gpu

GPU = Roofline(name="round", dram_gb_per_s=1000, l2_gb_per_s=2000, vector_tflops=10, matrix_tflops=100, half_tflops=300)
HEAD = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        {init}
    def forward(self, {names}):
        return {body}
def get_init_inputs():
    return []
def get_inputs():
    return [{inputs}]
"""
SQUARE = "torch.randn(64, 64)"
BYTES = 64 * 64 * 4
MATRIX_MS = 2 * 64**3 * STRASSEN / 100 * 1e-9


def _floor(body, *inputs, init="pass"):
    names = ", ".join("xyz"[: len(inputs)])
    source = HEAD.format(body=body, names=names, inputs=", ".join(inputs), init=init)
    task = GpuTask(source, "t", "full", "cpu", 1 << 20)
    try:
        return floor_of(task, GPU, l2_bytes=0)
    finally:
        task.close()


def _bytes(floor):
    return round(floor.memory_ms * 1e6 * 1000)


@pytest.mark.parametrize("body", ["torch.relu(x)", "x * 2", "x.cumsum(1)", "torch.softmax(x, 0)"])
def test_inputs_that_matter_and_outputs_count_once(body):
    assert _bytes(_floor(body, SQUARE)) == 2 * BYTES


@pytest.mark.parametrize(
    ("body", "inputs"),
    [
        ("x[:, :1] * 1", [SQUARE]),
        ("torch.nn.functional.embedding(y, x)", ["torch.randn(4096, 4)", "torch.zeros(4, dtype=torch.int64)"]),
        ("x.gather(1, y)", [SQUARE, "torch.zeros(64, 1, dtype=torch.int64)"]),
    ],
)
def test_an_input_that_is_read_in_part_does_not_count(body, inputs):
    floor = _floor(body, *inputs)
    assert _bytes(floor) <= 64 * 4
    assert floor.matrix_ms == 0


def test_an_output_that_is_stored_once_counts_once():
    assert _bytes(_floor("x.sum(1, keepdim=True).expand(64, 64)", SQUARE)) == BYTES + 64 * 4


def test_what_is_nan_by_itself_has_no_floor_from_inputs():
    assert _bytes(_floor("x / 0 * 0", SQUARE)) == BYTES


@pytest.mark.parametrize(
    ("body", "inputs", "init"),
    [
        ("x @ y", [SQUARE, SQUARE], "pass"),
        ("torch.relu(x @ y.T) + 1", [SQUARE, SQUARE], "pass"),
        ("self.layer(x)", [SQUARE], "self.layer = torch.nn.Linear(64, 64)"),
    ],
)
def test_products_of_given_matrices_count(body, inputs, init):
    assert _floor(body, *inputs, init=init).matrix_ms == pytest.approx(MATRIX_MS)


@pytest.mark.parametrize(
    ("body", "inputs"),
    [
        ("torch.tril(x) @ y", [SQUARE, SQUARE]),
        ("torch.diag(x) @ y", ["torch.randn(64)", SQUARE]),
        ("x @ y", ["torch.triu(torch.randn(64, 64))", SQUARE]),
        ("(x @ y).sum(1)", [SQUARE, SQUARE]),
        ("torch.nn.functional.conv2d(x, y)", ["torch.randn(1, 4, 16, 16)", "torch.randn(4, 4, 3, 3)"]),
    ],
)
def test_products_that_can_be_had_for_less_do_not_count(body, inputs):
    assert _floor(body, *inputs).matrix_ms == 0


def test_a_gpu_that_is_not_listed_has_no_floor():
    assert floor_of(None, None, 0.0) == Floor()
    assert of_gpu("NVIDIA GeForce GTX 970") is None


@pytest.mark.parametrize(
    ("name", "listed"),
    [
        ("NVIDIA H200", "H200"), ("NVIDIA H100 80GB HBM3", "H100 SXM"), ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H100 NVL", "H100 NVL"), ("NVIDIA A100-SXM4-80GB", "A100 80GB"), ("NVIDIA L40S", "L40S"),
        ("NVIDIA B200", "B200"), ("AMD Instinct MI300X", "MI300X"),
    ],
)  # fmt: skip
def test_gpus_are_known_by_the_words_of_their_names(name, listed):
    assert of_gpu(name).name == listed


def test_one_table_serves_the_model_and_the_floor():
    listed = [gpu for _, gpu in roofline._BY_NAME]
    assert all(gpu in listed for gpu in roofline.ROOFLINES.values())


def test_the_rate_is_that_of_the_cheapest_way_that_the_tolerance_lets_through():
    import torch

    assert rate_tflops(GPU, torch.bfloat16, tf32=False) == 300
    assert rate_tflops(GPU, torch.float32, tf32=False) == 100
    assert rate_tflops(of_gpu("NVIDIA H100"), torch.float32, tf32=True) == 495
