"""The clock on a real GPU: work that events miss, lines pinned in the L2 cache, graphs, compiled baselines."""

import pytest
import torch

from core.evaluation.gpu import baseline as gpu_baseline
from core.evaluation.gpu import probe as gpu_probe
from core.evaluation.gpu import timing
from core.evaluation.gpu.clock import GpuSettings
from core.evaluation.gpu.condition import RAN_ON
from core.evaluation.gpu.health import GpuHealth
from core.evaluation.gpu.lease import lease
from core.evaluation.gpu.stage import GpuStage
from core.evaluation.walls import sandbox
from core.tasks.task import Task

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
TASK = Task(
    task_id="test/clock", name="clock", level=1, origin="test",
    source="""
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2 + 1
def get_inputs():
    return [torch.randn(2048, 1024)]
def get_init_inputs():
    return []
""",
)  # fmt: skip
SLOW = Task(task_id="test/slow", name="slow", level=1, origin="test", source=TASK.source.replace("2048", "65536"))
HEAD = """
import ctypes
import torch
import triton
import triton.language as tl
@triton.jit
def kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n)
    tl.store(out_ptr + offs, tl.maximum(x, 0.0) * 2 + 1, mask=offs < n)
def run(x):
    out = torch.empty_like(x)
    kernel[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), BLOCK=1024)
    return out
"""
PLAIN = """
class ModelNew(torch.nn.Module):
    def forward(self, x):
        return run(x)
"""
SIDE = """
class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.side = torch.cuda.Stream()
    def forward(self, x):
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            out = run(x)
        {join}
        return out
"""
GRAPH = """
class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.graphs = {}
    def forward(self, x):
        if x.data_ptr() not in self.graphs:
            run(x)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = run(x)
            self.graphs[x.data_ptr()] = graph, out
        graph, out = self.graphs[x.data_ptr()]
        graph.replay()
        return out
"""
PINNED = """
class Window(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t), ("ratio", ctypes.c_float),
                ("hit", ctypes.c_int), ("miss", ctypes.c_int), ("rest", ctypes.c_char * 32)]
class ModelNew(torch.nn.Module):
    def forward(self, x):
        driver = ctypes.CDLL("libcuda.so.1")
        driver.cuCtxSetLimit(6, ctypes.c_size_t(1 << 26))
        window = Window(x.data_ptr(), x.numel() * 4, 1.0, 2, 1)
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self.status = driver.cuStreamSetAttribute(stream, 1, ctypes.byref(window))
        assert self.status == 0, self.status
        return run(x)
"""

NEVER_QUIET = """
import threading
def works(x):
    stream, buffer = torch.cuda.Stream(), torch.empty(1 << 28, dtype=torch.uint8, device=x.device)
    events = [torch.cuda.Event(blocking={blocking}) for _ in range(2)]
    with torch.cuda.stream(stream):
        while True:
            for event in events:
                for _ in range(32):
                    buffer.zero_()
                event.synchronize()
                event.record()
class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0
    def forward(self, x):
        self.calls += 1
        if self.calls == 3:
            threading.Thread(target=works, args=(x,), daemon=True).start()
        return run(x)
"""


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("baselines"))
    found = GpuStage(GpuSettings(own_work=False, baseline_folder=folder), sandbox.probe(), slot=80)
    found.start()
    found.wait_ready()
    yield found
    found.stop()


def _measured(stage, source, task=TASK):
    verdict = stage.judge(task, HEAD + source, "k")
    assert verdict.kind == "pass", verdict.feedback
    return stage.measured


def test_an_interval_is_narrow_and_holds_a_hundred_calls(stage):
    found = _measured(stage, PLAIN, SLOW)
    assert found.calls >= 100
    assert found.width < 0.05
    assert found.clock == "events"
    assert not found.below_floor
    assert 0.3 < found.roofline_share <= 1


def test_a_stream_that_nobody_waits_for_brings_nothing(stage):
    """Its output may be there by chance when it is looked at; then all of its work is in its time."""
    plain = _measured(stage, PLAIN, SLOW)
    verdict = stage.judge(SLOW, HEAD + SIDE.format(join="pass"), "k")
    if verdict.kind == "pass":
        assert stage.measured.clock == "wall"
        assert stage.measured.runtime_ms == pytest.approx(plain.runtime_ms, rel=0.15)
    else:
        assert verdict.category in ("wrong_value", "non_finite", "tampering"), verdict.feedback


def test_a_side_stream_that_is_joined_is_honest(stage):
    found = _measured(stage, SIDE.format(join="torch.cuda.current_stream().wait_stream(self.side)"), SLOW)
    assert found.clock == "events"


def test_a_graph_that_is_replayed_is_honest(stage):
    plain, graph = _measured(stage, PLAIN, SLOW), _measured(stage, GRAPH, SLOW)
    assert graph.clock == "events"
    assert graph.runtime_ms == pytest.approx(plain.runtime_ms, rel=0.1)


def test_pinned_lines_do_not_outlive_the_flush(stage):
    plain, pinned = _measured(stage, PLAIN), _measured(stage, PINNED)
    assert pinned.runtime_ms > 0.9 * plain.runtime_ms


@pytest.mark.parametrize("blocking", [True, False])
def test_who_keeps_the_gpu_busy_is_blamed_once_others_were_kept_away(tmp_path, blocking):
    """Half a minute: no quiet is found for a candidate's longest life, twice. One that spins while it waits is out of
    processor time before."""
    settings = GpuSettings(own_work=False, wall_s=6.0, baseline_folder=str(tmp_path / "baselines"))
    stage = GpuStage(settings, sandbox.probe(), slot=82)
    health = GpuHealth(
        "cuda:0", probe=lambda: gpu_probe.warm(stage.candidates, "cuda:0"), prober=stage.candidates,
        keep=[stage.baselines, stage.candidates], guard=lambda: lease("cuda:0"), folder=tmp_path,
    )  # fmt: skip
    stage.start()
    try:
        stage.wait_ready()
        health.quiet.calibrate()
        stage.watch_quiet(health.quiet)
        right = health.run(lambda: stage.judge(SLOW, HEAD + PLAIN, "a"))
        assert right.kind == "pass", right.feedback
        found = health.run(lambda: stage.judge(SLOW, HEAD + NEVER_QUIET.format(blocking=blocking), "b"))
        if blocking:
            assert found.category == "tampering" and RAN_ON in found.feedback, found.feedback
            assert health.condition().again == 1
        else:
            assert found.kind == "fail" and found.category in ("tampering", "timeout", "crash"), found.feedback
        right = health.run(lambda: stage.judge(SLOW, HEAD + PLAIN, "c"))
        assert right.kind == "pass", right.feedback
    finally:
        stage.stop()


def test_compiled_baselines_are_measured_once(tmp_path):
    settings = GpuSettings(
        own_work=False,
        baselines=("eager", "compile", "max-autotune"),
        baseline="compile",
        baseline_folder=str(tmp_path),
    )
    stage = GpuStage(settings, sandbox.probe(), slot=84)
    stage.start()
    try:
        stage.wait_ready()
        verdict = stage.judge(SLOW, HEAD + PLAIN, "k")
        assert verdict.kind == "pass" and not verdict.baseline_trouble, (verdict.feedback, verdict.baseline_trouble)
        first = stage.measured
        assert set(first.others) == {"compile", "max-autotune"}
        assert {"compile", "max-autotune"} <= set(stage.spent_s)
        again = _measured(stage, PLAIN, SLOW)
        assert set(again.others) == {"compile", "max-autotune"}
        assert not {"compile", "max-autotune"} & set(stage.spent_s)
        for name in first.others:
            assert again.others[name] == pytest.approx(first.others[name], rel=2 * timing.MOST_DRIFT)
    finally:
        stage.stop()
    assert len(list(tmp_path.glob("*.json"))) == len(gpu_baseline.MODES)
