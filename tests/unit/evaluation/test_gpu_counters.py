"""Hardware counters: what ncu prints is read, the heaviest kernel is told, and why there are none is said once."""

import logging
import math
import sys

import pytest
import torch
from test_gpu_stage import CANDIDATE, RIGHT, TASK

from core.evaluation.gpu import counters as gpu_counters
from core.evaluation.gpu.clock import GpuSettings
from core.evaluation.gpu.counters import Counters, NoCountersError, find_ncu, forbidden, heaviest, parse, worded
from core.evaluation.gpu.spawn import GpuZygote
from core.evaluation.gpu.stage import GpuStage
from core.evaluation.walls import sandbox

NAMES = ["ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size",
         "Grid Size", "Device", "CC", *sorted(gpu_counters.METRICS)]  # fmt: skip
UNITS = {
    gpu_counters.TIME: "ns",
    gpu_counters.REGISTERS: "register/thread",
    **dict.fromkeys(gpu_counters.LOCAL, "inst"),
}


def row(values):
    return ",".join('"' + str(value) + '"' for value in values)


def launch(number, kernel, **metrics):
    """One row as ncu prints it; numbers may have commas."""
    told = {"time": "12,345.00", "dram": "81.30", "sm": "12.06", "occupancy": "47.51", "registers": "32",
            "load": "0", "store": "0", **metrics}  # fmt: skip
    by_name = dict(zip(gpu_counters.METRICS, told.values(), strict=True))
    plain = [number, 4711, "python3.12", "127.0.0.1", kernel, 1, 7, "(128, 1, 1)", "(4096, 1, 1)", 0, "9.0"]
    return row([*plain, *(by_name[name] for name in sorted(by_name))])


def printed(*launches, before='==PROF== Connected to process 4711 (/usr/bin/python3.12)\nmade 4096 rows, "quoted"\n'):
    units = ["", "", "", "", "", "", "", "block", "grid", "", "", *(UNITS.get(name, "%") for name in NAMES[11:])]
    after = "==PROF== Disconnected from process 4711\n"
    return before + "\n".join([row(NAMES), row(units), *launches]) + "\n" + after


def test_every_launch_is_read_past_what_else_is_printed():
    found = parse(printed(launch(0, "softmax_kernel"), launch(1, "other, with a comma", registers="255", load="1,024")))
    assert [one.kernel for one in found] == ["softmax_kernel", "other, with a comma"]
    first, second = found
    assert (first.ns, first.dram, first.sm, first.occupancy, first.registers) == (12345.0, 81.3, 12.06, 47.51, 32)
    assert (first.local, second.local, second.registers) == (0, 1024, 255)


def test_the_heaviest_is_of_the_kernel_that_takes_most_time_in_all():
    launches = parse(
        printed(launch(0, "often", time="400"), launch(1, "once", time="900"), *[launch(2, "often", time="300")] * 2)
    )
    found = heaviest(launches)
    assert (found.kernel, found.ns) == ("often", 400)


def test_it_is_told_in_two_short_lines():
    text = worded(parse(printed(launch(0, "softmax_kernel", load="2,000", store="500")))[0])
    assert text.splitlines() == [
        "counters: your softmax_kernel, 12.3 us: memory 81 %, SM 12 % of peak",
        "counters: occupancy 48 %, 32 registers a thread, 2,500 spill instructions",
    ]
    assert "no spills" in worded(parse(printed(launch(0, "k")))[0])


def test_metrics_that_this_gpu_lacks_are_left_out():
    found = parse(printed(launch(0, "k", dram="n/a", load="n/a", occupancy="")))[0]
    assert math.isnan(found.dram) and math.isnan(found.local)
    assert worded(found).splitlines() == [
        "counters: your k, 12.3 us: SM 12 % of peak",
        "counters: 32 registers a thread",
    ]


def test_a_kernel_s_name_writes_no_lines():
    assert len(worded(parse(printed(launch(0, "k\tevil" * 20)))[0]).splitlines()) == 2


DENIED = "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"==PROF== Connected to process 7\n{DENIED} on the target device 0.\n", "not permitted"),
        ("==WARNING== No kernels were profiled.\n", "No kernels were profiled"),
        ("==ERROR== Failed to find metric x\n==PROF== y\n", "Failed to find metric x"),
        ("Traceback\nValueError: its own\n", "ValueError: its own"),
        ("", "said nothing"),
        (printed(), "no launch of a kernel"),
        ('"ID","Kernel Name"\n"",""\n"0","k"\n', "no column gpu__time_duration.sum"),
    ],
)
def test_why_there_are_none_is_one_line(text, said):
    with pytest.raises(NoCountersError) as error:
        parse(text)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_the_drivers_word_is_read():
    text = "ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: {}\nPreserveVideoMemoryAllocations: 0\n"
    assert "NVreg_RestrictProfilingToAdminUsers=0" in forbidden(text.format(1))
    assert forbidden(text.format(0)) == forbidden("") == ""


@pytest.fixture(scope="module")
def zygote():
    found = GpuZygote(sandbox.probe(), slot=87)
    found.start()
    found.wait_ready()
    yield found
    found.stop()


LIMITS = sandbox.Limits(memory_mb=4096, wall_s=500, tmp_mb=512, threads=512, allow_processes=True)


def counted(zygote, ncu, source, backend="triton"):
    return Counters(ncu, "cpu").lines(zygote, LIMITS, TASK.source, "full", source, backend)


def test_the_child_is_told_what_to_start_and_gives_back_what_it_printed(zygote, caplog):
    """Python stands where ncu would be: it does not know ncu's options, and says so."""
    assert counted(zygote, sys.executable, CANDIDATE.format(body=RIGHT)) == ""
    assert "ncu counted nothing" in caplog.text and "python -h" in caplog.text
    assert len(caplog.records) == 1 and not zygote.running


def test_why_is_said_once(zygote, caplog):
    counters = Counters("", "cpu")
    for _ in range(3):
        assert counters.lines(zygote, LIMITS, TASK.source, "full", "x = 1", "triton") == ""
    assert [record.getMessage() for record in caplog.records] == [
        "no hardware counters in feedback: ncu is not found: install Nsight Compute"
    ]


def test_an_ncu_that_hangs_is_not_started_for_every_candidate(zygote, caplog, monkeypatch):
    """Each that hangs holds a verdict up for its whole time, and tells nobody anything."""
    monkeypatch.setattr(gpu_counters, "WALL_S", 2.0)
    counters = Counters("sh", "cpu")
    begun = []
    monkeypatch.setattr(zygote, "begin", lambda limits, begin=zygote.begin: (begun.append(limits), begin(limits)))
    monkeypatch.setattr(gpu_counters, "command", lambda *words: ["sh", "-c", "sleep 1000"])
    for _ in range(gpu_counters.FAILURES + 2):
        assert counters.lines(zygote, LIMITS, TASK.source, "full", CANDIDATE.format(body=RIGHT), "triton") == ""
    assert len(begun) == gpu_counters.FAILURES and not zygote.running
    first, last = [record.getMessage() for record in caplog.records]
    assert "the process that counts failed" in first and "not started any more" in last


@pytest.mark.parametrize(
    ("source", "backend", "said"), [("x = 1", "triton", "defines no kernel"), ("x = 1", "cuda", "only Triton's")]
)
def test_sources_without_countable_kernels_start_nothing(zygote, caplog, source, backend, said):
    assert counted(zygote, sys.executable, source, backend) == "" and said in caplog.text


def test_the_command_names_the_kernels_and_the_metrics():
    words = gpu_counters.command("ncu", ["a_kernel", "b.c"], ["python"])
    assert words[words.index("--kernel-name") + 1] == r"regex:^(a_kernel|b\.c)$"
    assert words[words.index("--metrics") + 1].split(",") == list(gpu_counters.METRICS)
    assert words[-1] == "python" and {"--csv", "--profile-from-start"} <= set(words)


KERNEL = """
import torch
import triton
import triton.language as tl
@triton.jit
def scale_kernel(x_ptr, w_ptr, y_ptr, out_ptr, n, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n) + tl.load(w_ptr + at % WIDTH, mask=at < n)
    tl.store(out_ptr + at, tl.maximum(x, 0.0) * tl.load(y_ptr + at, mask=at < n), mask=at < n)
class ModelNew(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(width))
    def forward(self, x, y):
        out = torch.empty_like(x)
        n = x.numel()
        scale_kernel[(triton.cdiv(n, 1024),)](x, self.weight, y, out, n, self.weight.numel(), 1024)
        return out
"""


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.skipif(not find_ncu(), reason="needs ncu")
@pytest.mark.timeout(300)
def test_counters_stand_in_the_feedback_or_the_log_says_why(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    stage = GpuStage(GpuSettings(counters=True, baseline_folder=str(tmp_path)), sandbox.probe(), slot=86)
    stage.start()
    try:
        stage.wait_ready()
        verdict = stage.judge(TASK, KERNEL, "k")
        assert verdict.kind == "pass", verdict.feedback
        said = [record.getMessage() for record in caplog.records if "no hardware counters" in record.getMessage()]
        print(verdict.feedback, said, stage.spent_s)
        assert ("counters: your scale_kernel" in verdict.feedback) != bool(said), (verdict.feedback, said)
        assert stage.judge(TASK, KERNEL, "k").kind == "pass"
    finally:
        stage.stop()
