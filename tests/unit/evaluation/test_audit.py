"""Audits of small tasks in real child processes: what is flagged, what is made smaller, what can't end the audit."""

import pytest

from core.evaluation.audit.auditor import Auditor, AuditorError, AuditProcess
from core.evaluation.audit.server import Answer, Order, measure_into, verdict
from core.tasks.audit import MISS, Kept
from core.tasks.sources import load_source
from core.tasks.task import Task

FRAME = """
import torch
N = 64
class Model(torch.nn.Module):
    def forward(self, x):
        {body}
def get_inputs():
    return [{inputs}]
def get_init_inputs():
    return []
"""


def task(body, inputs="torch.randn(8, N)", name="t", before=""):
    source = before + FRAME.format(body=body, inputs=inputs)
    return Task(task_id=f"test/{name}", name=name, level=1, origin="test", source=source)


@pytest.fixture(scope="module")
def process():
    process = AuditProcess()
    yield process
    process.stop()


@pytest.fixture(scope="module")
def auditor(process):
    return Auditor(wall_s=30.0, process=process)


@pytest.fixture(scope="module")
def small(process):
    """Fits 256 KiB of inputs and outputs, so that small tasks are large."""
    return Auditor(wall_s=30.0, share=1 / 64, process=process)


@pytest.mark.parametrize(
    ("body", "inputs", "answers"),
    [
        ("return torch.relu(x) * 0", "torch.randn(8, N)", {"zeros", "constant", "stale"}),
        ("return x * 0 + 280000.0", "torch.randn(8, N)", {"constant", "stale"}),
        ("return torch.arange(8.0) + 0 * x.sum()", "torch.randn(8, N)", {"stale"}),
        ("return x.abs().sign().long()", "torch.randn(8, N)", {"constant", "stale"}),
        ("return x.clone()", "torch.randn(8, N)", {"identity"}),
        ("return x, x * 0 + 1", "torch.randn(8, N)", set()),
    ],
)
def test_answers_that_compute_nothing_are_found(auditor, body, inputs, answers):
    audit = auditor.audit(task(body, inputs))
    assert set(audit.passing()) == answers, audit.margins
    assert audit.flagged == bool(answers)


def test_small_outputs_pass_common_tolerances_and_not_ours(auditor):
    audit = auditor.audit(task("return x * 1e-4"))
    assert set(audit.passing("allclose_1e-2")) == {"zeros", "constant", "stale"}
    assert audit.passing("allclose_1e-4") == ()
    assert (audit.status, audit.reason) == ("sound", "")
    assert audit.best()[1] > 100


def test_an_input_is_an_answer_only_where_other_inputs_say_so_too(auditor):
    audit = auditor.audit(task("return torch.relu(x)", "torch.rand(8, N)"))
    assert "identity" in audit.passing("scaled")
    assert audit.status == "sound"


def test_one_number_is_not_its_own_mean(auditor):
    audit = auditor.audit(task("return (x * x).mean()"))
    assert audit.outputs == ("float32[]",)
    assert audit.margins["ours"]["constant"] == audit.margins["ours"]["stale"] > 1
    audit = auditor.audit(task("return float(x.abs().sum()), int(x.shape[0])"))
    assert (audit.status, audit.outputs) == ("sound", ("float", "int"))
    assert auditor.audit(task("return int(x.shape[0])")).passing() == ("constant", "stale")


def test_whole_numbers_and_keyword_inputs_are_kept(auditor):
    audit = auditor.audit(
        task("return torch.where(flag[k], k, 3)", "[], {'k': torch.randint(0, 9, (32,)), 'flag': x.bool(), 'n': 2}")
    )
    assert audit.status == "unknown"
    source = task("return x").source.replace("self, x", "self, k, flag, n").replace("[torch.randn(8, N)]", "[[], {}]")
    source = source.replace(
        "[[], {}]", "[[], {'k': torch.randint(0, 9, (32,)), 'flag': torch.rand(9) > 0.5, 'n': 2}]", 1
    )
    source = source.replace("return x", "return torch.where(flag[k], k * n, 3)")
    audit = auditor.audit(Task(task_id="t/kw", name="kw", level=1, origin="t", source=source))
    assert audit.outputs == ("int64[32]",)
    assert set(audit.margins["ours"].values()) == {MISS}


def test_random_modules_are_audited_in_eval_mode_or_not_at_all(auditor):
    body = "return torch.nn.functional.dropout(x, 0.5, self.training) + x"
    assert not auditor.audit(task(body)).training
    audit = auditor.audit(task("return x + torch.rand_like(x)"))
    assert (audit.status, audit.reason) == (
        "unknown",
        "Model gives another output at every call, nothing can be compared",
    )


def test_rounding_noise_is_not_a_task(auditor):
    normed = task("return torch.nn.functional.group_norm(x, 1).mean(dim=1)", "torch.randn(64, N)")
    audit = auditor.audit(normed)
    assert audit.status == "noise"
    assert audit.reason == f"its own output misses the tolerance by a factor of {audit.own['ours']:.3g}"
    # With weights it is one: the judge gives every channel another.
    layer = "    def __init__(self):\n        super().__init__()\n        self.norm = torch.nn.GroupNorm(1, N)\n"
    source = normed.source.replace("torch.nn.functional.group_norm(x, 1)", "self.norm(x)")
    source = source.replace("(torch.nn.Module):\n", "(torch.nn.Module):\n" + layer)
    audit = auditor.audit(Task(task_id="t/norm", name="norm", level=1, origin="t", source=source))
    assert (audit.status, audit.reason) == ("sound", "")
    assert audit.own["ours"] < 1


def test_bfloat16_is_a_run_in_bfloat16(auditor):
    audit = auditor.audit(task("return x @ x.T + 300", "torch.randn(32, N)"))
    assert audit.margins["scaled_bf16"].keys() == audit.margins["scaled"].keys()
    assert audit.own["scaled_bf16"] < 1 < audit.margins["scaled_bf16"]["zeros"] < audit.margins["scaled"]["zeros"]
    # 300 +- 1e-3 is 300 in bfloat16 and not in float32.
    audit = auditor.audit(task("return x * 1e-3 + 300"))
    assert "constant" in audit.passing("scaled_bf16")
    assert "constant" not in audit.passing("scaled")
    audit = auditor.audit(task("return torch.fft.fft(x).abs()"))
    assert "scaled_bf16" not in audit.margins
    assert audit.notes[0].startswith("does not run in bfloat16: ")
    assert auditor.audit(task("return x.float()")).notes == ("does not stay in bfloat16",)


def test_large_tasks_are_made_smaller_batch_first(small):
    before = "batch, height, width = 4096, 64, 64\n"
    audit = small.audit(task("return x + 1", "torch.rand(batch, height, width)", before=before))
    assert audit.scaled == {"batch": (4096, 8)}
    assert audit.outputs == ("float32[8, 64, 64]",)
    assert audit.status == "sound"
    before = "shape = (8192,)\nrows = 8192\n"
    tied = task("return (x * y).mean()", "torch.rand(rows, *shape), torch.rand(rows)", before=before)
    tied = Task(task_id="t", name="t", level=1, origin="t", source=tied.source.replace("self, x", "self, x, y"))
    audit = small.audit(tied)
    assert audit.scaled["rows"] == (8192, 128)
    assert audit.scaled["shape"] == ([8192], [128])


def test_outputs_keep_elements_where_that_is_possible(small):
    before = "batch, width = 1024, 4096\n"
    audit = small.audit(task("return x.amax(1)", "torch.rand(batch, width)", before=before))
    assert audit.scaled == {"batch": (1024, 256), "width": (4096, 128)}
    assert audit.outputs == ("float32[256]",)


def test_a_flag_at_other_sizes_is_believed_when_a_second_audit_agrees(small):
    before = "groups, width = 8192, 131072\n"
    inputs = "torch.randn(2, width)"
    zeros = small.audit(task("return x * 0", inputs, before=before))
    assert (zeros.status, zeros.reason) == ("degenerate", "accepts zeros, constant, stale")
    assert zeros.notes == ("accepts zeros, constant, stale also at width=16384",)
    # Two values per group become -1 and 1, whatever they are; 16 do not.
    body = "g = x.view(2, groups, -1); return ((g - g.mean(-1, True)) / g.std(-1, keepdim=True)).amin(-1)"
    false = small.audit(task(body, inputs, before=before))
    assert (false.status, false.reason) == ("sound", "")
    assert false.scaled == {"width": (131072, 65536)}
    assert false.notes == ("accepts constant, stale at width=16384, not at the sizes of this row",)
    # Nothing but the batch was cut: what holds there holds.
    batch = small.audit(task("return x * 0", "torch.randn(batch, 64)", before="batch = 8192\n"))
    assert (batch.status, batch.notes) == ("degenerate", ())


def test_a_flag_without_a_second_audit_is_not_believed(small):
    body = "assert width < 2**16 or x.is_meta; return x * 0"
    audit = small.audit(task(body, "torch.randn(2, width)", before="width = 131072\n"))
    assert audit.status == "unknown"
    assert audit.reason == (
        "accepts zeros, constant, stale at width=16384, but more than the batch was made smaller, and there is no "
        "second audit: AssertionError: "
    )


def test_what_can_not_be_made_smaller_is_a_row_with_its_reason(auditor):
    audit = auditor.audit(task("return x + 1", "torch.rand(100_000, 100_000)"))
    assert audit.status == "unknown"
    assert "times the audit's budget, and no module-level number makes it smaller" in audit.reason


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("raise KeyError('no')", "KeyError: 'no'"),
        ("import os; os._exit(3)", "its process ended with exit code 3"),
        ("import os; os.kill(os.getpid(), 11)", "its process ended with signal 11"),
        ("import sys; sys.exit(0)", "SystemExit: 0"),
        ("return None", "the output holds no tensor and no number"),
    ],
)
def test_a_task_that_dies_ends_only_itself(auditor, body, reason):
    # Not on the meta device, where it is only sized.
    audit = auditor.audit(task(f"x.sum().item(); {body}"))
    assert audit.status == "unknown"
    assert audit.reason == reason
    assert auditor.audit(task("return x + 1")).status == "sound"


def test_limits_of_memory_and_time(process):
    hangs = task("x.sum().item()\n        while True: pass", name="hangs")
    eats = task("x.sum().item()\n        return torch.empty(2**33).fill_(1.0)", name="eats")
    assert Auditor(wall_s=0.7, process=process).audit(hangs).reason == "no answer within 0.7 s"
    assert "allocate memory" in Auditor(memory_mb=512, process=process).audit(eats).reason


def test_audits_are_kept_and_are_the_same_again(tmp_path, process):
    path = tmp_path / "audit.jsonl"
    with Auditor(path, process=process) as auditor:
        first = auditor.audit(task("return x * 2"))
    with Auditor(process=process) as auditor:  # leaves a shared process alone
        again = auditor.audit(task("return x * 2"))
    assert first.margins == again.margins
    with Auditor(path) as auditor:
        auditor.stop()
        assert auditor.audit(task("return x * 2", name="other")).margins == first.margins
        with pytest.raises(AuditorError, match="stopped while test/t was audited"):
            auditor.audit(task("return x * 3"))
    assert Kept(path).get(task("return x * 3"), "cpu") is None


def test_the_project_s_own_tasks_are_sound():
    # In this process: a fork for each costs more than its audit.
    found = {}
    for own in (*load_source(kind="starter"), *load_source(kind="composed", count=8)):
        answer = Answer()
        measure_into(answer, Order(task_id=own.task_id, source=own.source))
        found[own.task_id] = (*verdict(answer), answer.scaled)
    assert found
    assert {name: row for name, row in found.items() if row != ("sound", "", {})} == {}
