"""Verdicts over real candidates: the kind, the category, and what the policy is told."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch

from core.evaluation.judge import Judge
from core.evaluation.pool import JudgePool
from core.evaluation.settings import JudgeSettings
from core.evaluation.verdict import Verdict
from core.tasks.compose import compose
from core.tasks.task import Task
from runners.cli import main

Ask = Callable[[str], Verdict]
Variant = Callable[..., str]
BODY = "tl.store(out_ptr + offsets, tl.maximum(tl.load(x_ptr + offsets, mask=mask) * 2.0, 0.0), mask=mask)"


def test_a_right_kernel_passes_with_its_modelled_speed(verdict_of: Ask, variant: Variant) -> None:
    verdict = verdict_of(variant())
    assert (verdict.kind, verdict.stage, verdict.category) == ("pass", "", "")
    assert verdict.compiled and verdict.correct and verdict.tier == "cpu"
    # Eager moves the data four times in two launches, the kernel twice in one: a little over 2 at 134 MB.
    assert verdict.speed_kind == "modelled"
    assert verdict.speedup == pytest.approx(2.0, abs=0.01) and verdict.speedup_low == verdict.speedup
    assert verdict.runtime_ms == pytest.approx(2 * 33554432 * 4 / 3350e9 * 1e3 + 0.003, rel=1e-3)
    assert verdict.feedback.startswith("correct: modelled speedup 2.00x over eager PyTorch\n")


def test_a_staged_kernel_earns_less(verdict_of: Ask, variant: Variant) -> None:
    staged = variant(
        body="tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) * 2.0, mask=mask)\n"
        "    tl.debug_barrier()\n"
        "    tl.store(out_ptr + offsets, tl.maximum(tl.load(out_ptr + offsets, mask=mask), 0.0), mask=mask)"
    )
    two_launches = variant(
        body=BODY.replace("2.0", "1.4142135623730951"), after="kernel[(triton.cdiv(n, 256),)](out, out, n, BLOCK=256)"
    )
    fused, slow, slower = (verdict_of(source) for source in (variant(), staged, two_launches))
    assert fused.kind == slow.kind == slower.kind == "pass"
    assert fused.speedup > 1.2 * slow.speedup > 1.2 * slower.speedup  # type: ignore[operator]


CASES = {
    "mask dropped": (
        {"body": BODY.replace("x_ptr + offsets, mask=mask", "x_ptr + offsets")},
        "out_of_bounds: tl.load reads x_ptr[1023] but x_ptr has 1000 elements (program 3) (line 12)",
        "tl.store(out_ptr + offsets",
    ),
    "store unmasked": (
        {"body": BODY.replace(", mask=mask)", ")").replace("x_ptr + offsets)", "x_ptr + offsets, mask=mask)")},
        "out_of_bounds: tl.store writes out_ptr[1023] but out_ptr has 1000 elements",
        "Mask the access",
    ),
    "before the start": (
        {"body": BODY.replace("out_ptr + offsets", "out_ptr + offsets - 1")},
        "out_of_bounds: tl.store writes out_ptr[-1] but",
        "",
    ),
    "wrong constant": ({"body": BODY.replace("2.0", "3.0")}, "wrong_value: output[", "1.5 times the right ones"),
    "negated": ({"body": BODY.replace("tl.maximum(", "-tl.maximum(")}, "wrong_value: output[", "sign is flipped"),
    "wrong grid": (
        {"before": "n = 500", "after": "n = x.numel()"},
        "non_finite: output[500] = nan, wanted ",
        "500 of 1,000 elements are wrong, all from element 500 on",
    ),
    "grid of none": (
        {"before": "n = 0", "after": "n = x.numel()"},
        "non_finite: output[0] = nan, wanted ",
        "No program ran of kernel at line 23 with grid (0, 1, 1): round up",
    ),
    "unknown function": (
        {"body": BODY.replace("tl.maximum", "tl.maximun")},
        "kernel_error: AttributeError: tl has no attribute 'maximun' (line 12)",
        "tl.maximun(",
    ),
    "block not a power of 2": (
        {"after": "kernel[(4,)](x, out, n, BLOCK=250)"},
        "kernel_error: ValueError: arange's range must be a power of 2",
        "tl.arange(0, BLOCK)",
    ),
    "argument missing": ({"after": "kernel[(4,)](x, out, BLOCK=256)"}, "launch_error: kernel: missing a required", "line"),
    "unknown argument": (
        {"after": "kernel[(4,)](x, out, n, SIZE=256)"},
        "launch_error: kernel has no argument 'SIZE'; it takes x_ptr, out_ptr, n, BLOCK",
        "SIZE=256",
    ),
    "grid of four": ({"after": "kernel[(4, 1, 1, 1)](x, out, n, BLOCK=256)"}, "launch_error: a grid has 1 to 3", ""),
    "bad import": ({"top": "import flash_attention_9"}, "import_error: ModuleNotFoundError: No module named", "(line 6)"),
    "bad init": ({"init": "self.x = undefined"}, "construct_error: NameError: name 'undefined' is not defined (line 17)", ""),
    "raises": ({"before": "raise ValueError('no')"}, "runtime_error: ValueError: no (line 22)", "raise ValueError('no')"),
    "returns nothing": ({"after": "return"}, "wrong_structure: forward returned nothing, wanted one tensor", ""),
    "returns two": ({"after": "return out, out"}, "wrong_structure: forward returned a tuple of 2, wanted one tensor", ""),
    "returns a module": ({"after": "return self"}, "wrong_type: forward returned a candidate.ModelNew", ""),
    "wrong shape": ({"after": "return out[:-1]"}, "wrong_shape: output has shape (999,), wanted (1000,)", ""),
    "wrong dtype": ({"after": "return out.half()"}, "wrong_dtype: output is float16, wanted float32", ""),
    "in place": ({"before": "out = x"}, "input_mutated: forward changed its input 0", "torch.empty_like"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_feedback_says_what_is_wrong(verdict_of: Ask, variant: Variant, name: str) -> None:
    places, start, inside = CASES[name]
    verdict = verdict_of(variant(**places))
    assert verdict.kind == "fail" and not verdict.correct and verdict.speedup is None
    assert verdict.feedback.startswith(start), verdict.feedback
    assert inside in verdict.feedback
    assert len(verdict.feedback) <= 400


def test_compiled_means_that_a_launch_was_reached(verdict_of: Ask, variant: Variant) -> None:
    assert verdict_of(variant(body=BODY.replace("2.0", "3.0"))).compiled
    assert verdict_of(variant(body=BODY.replace("tl.maximum", "tl.maximun"))).compiled
    assert not verdict_of(variant(before="raise ValueError")).compiled
    assert not verdict_of("def f(:").compiled


LINEAR = """
import torch
class Model(torch.nn.Module):
    def __init__(self, n):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(n))
    def forward(self, x):
        return x * self.scale
def get_inputs():
    return [torch.randn(4, 8)]
def get_init_inputs():
    return [8]
"""


@pytest.mark.parametrize(
    ("attribute", "feedback"),
    [
        ("self.weight = torch.nn.Parameter(torch.ones(8))", "weights_mismatch: scale (8,) is missing"),
        ("self.scale = torch.nn.Parameter(torch.ones(9))", "weights_mismatch: scale has shape (9,) instead of (8,)"),
        ("self.scale = torch.nn.Parameter(torch.ones(8).half())", "weights_mismatch: scale has dtype torch.float16"),
    ],
)
def test_weights_that_do_not_fit_have_their_own_category(
    judge: Judge, variant: Variant, attribute: str, feedback: str
) -> None:
    task = Task(task_id="t/linear", name="linear", level=1, origin="t", source=LINEAR)
    source = variant(init=attribute).replace("def __init__(self)", "def __init__(self, n)")
    assert judge.judge(task, source, "k").feedback.startswith(feedback)


def test_what_this_tier_can_not_tell_is_not_a_failure(verdict_of: Ask, variant: Variant) -> None:
    for in_bfloat16 in (".to(tl.bfloat16) * 2.0", ".to(tl.bfloat16) * tl.full((), 2.0, tl.bfloat16)"):
        verdict = verdict_of(variant(body=BODY.replace("* 2.0", in_bfloat16)))
        assert (verdict.kind, verdict.category) == ("unsupported", "unsupported"), verdict.feedback
        assert "bfloat16 arithmetic" in verdict.feedback
    claimed = variant(
        before="from core.evaluation.interpreter.tracing import UnsupportedError; raise UnsupportedError('inline assembly')"
    )
    assert verdict_of(claimed).kind == "fail"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("x = 1", "lacks a class Model"),
        (LINEAR.replace("return [8]", "return [8, 8]"), "TypeError"),
        (LINEAR.replace("x * self.scale", "x * torch.rand_like(x)"), "another output at every call"),
        (LINEAR.replace("torch.randn(4, 8)", "torch.randn(0, 8)"), "no elements"),
        (LINEAR.replace("return x * self.scale", "return x[:, :0]"), "no elements"),
        (LINEAR.replace("ones(n)", "ones(0)").replace("torch.randn(4, 8)", "torch.randn(4, 0)"), "no elements"),
    ],
)
def test_a_broken_task_is_not_the_candidates_fault(judge: Judge, variant: Variant, source: str, words: str) -> None:
    verdict = judge.judge(Task(task_id="t/x", name="x", level=1, origin="t", source=source), variant(), "k")
    assert verdict.kind == "infra" and words in verdict.feedback, verdict.feedback


def test_a_task_beyond_this_tier_is_unsupported(judge: Judge, variant: Variant) -> None:
    source = LINEAR.replace("torch.randn(4, 8)", "torch.randn(100000000, 8)")
    verdict = judge.judge(Task(task_id="t/big", name="big", level=1, origin="t", source=source), variant(), "k")
    assert verdict.kind == "unsupported" and "too much for the CPU tier" in verdict.feedback


def test_generated_tasks_are_told_right_from_wrong(judge: Judge) -> None:
    import random

    rng = random.Random(7)
    for composition in compose(seed=11, count=8):
        right = judge.judge(composition.task(), composition.kernel(), "k")
        assert right.kind == "pass", (composition.source, right.feedback)
        staged = judge.judge(composition.task(), composition.kernel("staged"), "k")
        assert staged.kind == "pass" and staged.speedup < right.speedup, composition.source  # type: ignore[operator]
        kinds = [text for text in composition.mistake(rng) if "ModelNew" in text]
        assert judge.judge(composition.task(), kinds[0], "k").kind == "fail", kinds[0]


DOT = """a = tl.full((16, {k}), 1.0, tl.float32) * tl.load(x_ptr)
    b = tl.full(({k}, 16), 1.0, tl.float32) * tl.load(x_ptr)
    tl.store(out_ptr + tl.arange(0, 16), tl.sum(tl.dot(a, b), axis=1))
    tl.debug_barrier()
    """


@pytest.mark.parametrize(
    ("places", "feedback"),
    [
        ({}, "correct: modelled speedup 2.00x"),
        ({"body": DOT.format(k=8) + BODY}, "compile_error: "),
        # Both are refused before they are compiled, in words that say what to do.
        ({"top": "FACTOR = 2.0", "body": BODY.replace("2.0", "FACTOR")}, "illegal_kernel: FACTOR is a plain global"),
        ({"body": BODY.replace("2.0", "float(str(2))")}, "illegal_kernel: Python's str() can't be used in a kernel"),
        ({"body": BODY.replace("2.0", "3.0")}, "wrong_value: "),
    ],
)
def test_the_target_refuses_what_the_interpreter_accepts(
    compiling: Judge, task: Task, variant: Variant, places: dict[str, str], feedback: str
) -> None:
    verdict = compiling.judge(task, variant(**places), "k")
    assert verdict.feedback.startswith(feedback), verdict.feedback
    assert verdict.compiled == (not feedback.startswith(("compile_error", "illegal_kernel")))


def test_shared_memory_is_held_against_the_target(compiling: Judge, task: Task, variant: Variant) -> None:
    body = """i = tl.arange(0, 64)
    acc = tl.zeros((64, 64), tl.float32)
    for start in range(0, n - 360, 64):
        a = tl.load(x_ptr + i[:, None] + start + i[None, :])
        b = tl.load(x_ptr + i[None, :] + start + i[:, None])
        acc += tl.dot(a, b)
    tl.store(out_ptr + i, tl.sum(acc, axis=1), mask=i < n - 1000)
    """
    source = variant(body=body + BODY).replace("BLOCK=256)", "BLOCK=256, num_stages=10)")
    verdict = compiling.judge(task, source, "k")
    assert verdict.category == "shared_memory" and not verdict.compiled, verdict.feedback
    assert verdict.feedback.startswith("shared_memory: shared memory 327,680 B > 232,448 B in kernel on cuda:90")


def test_pool_judges_side_by_side_and_survives_a_killed_worker(task: Task, variant: Variant) -> None:
    async def run() -> None:
        pool = JudgePool(JudgeSettings(wall_s=2.0), workers=2)
        await pool.start()
        try:
            assert pool.walls
            sources = [variant(), variant(body=BODY.replace("2.0", "3.0")), variant(before="while True: pass")] * 2
            loop = asyncio.get_running_loop()
            ticks = 0

            async def tick() -> None:
                nonlocal ticks
                while True:
                    await asyncio.sleep(0.01)
                    ticks += 1

            ticking = loop.create_task(tick())
            verdicts = await asyncio.gather(*(pool.judge(task, text, f"k{i}") for i, text in enumerate(sources)))
            ticking.cancel()
            assert [verdict.category for verdict in verdicts] == ["", "wrong_value", "timeout"] * 2
            assert [verdict.candidate_key for verdict in verdicts] == [f"k{i}" for i in range(6)]
            assert ticks > 20  # the loop went on while two workers waited
            process = pool._workers[0]._process
            assert process is not None
            os.kill(process.pid, 9)
            again = await asyncio.gather(*(pool.judge(task, variant(), "k") for _ in range(4)))
            assert [verdict.kind for verdict in again] == ["pass"] * 4
            gauges = pool.gauges()
            assert gauges["worker_restarts"] == 1 and gauges["judged"] == 10 and gauges["busy"] == 0
            assert gauges["busy_s"] >= sum(verdict.wall_s for verdict in (*verdicts, *again)) > 0
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(pool.judge(task, variant(before="while True: pass"), "k"), 0.5)
            assert (await pool.judge(task, variant(), "k")).kind == "pass"
            # Half of a surrogate pair: text that JSON can hold and nobody can encode.
            odd = await pool.judge(task, variant(before="odd = '\ud800'  # \udfff"), "k")
            assert odd.kind == "pass", odd.feedback
        finally:
            await pool.stop()

    asyncio.run(run())


def test_command_line_exit_codes(
    tmp_path: Path, task: Task, variant: Variant, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"task": task.source, "good": variant(), "bad": "class ModelNew: pass", "broken": "x = 1"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)

    def call(task_file: str, candidate: str, *more: str) -> int:
        return main(["judge", "--task", str(tmp_path / task_file), "--candidate", str(tmp_path / candidate), *more])

    assert call("task", "good", "--json") == 0
    verdict = msgspec.json.decode(capsys.readouterr().out, type=Verdict)
    assert verdict.kind == "pass" and verdict.speedup is not None
    assert call("task", "bad") == 1
    assert "FAIL at static" in capsys.readouterr().out
    assert call("broken", "good") == 2
    assert "lacks a class Model" in capsys.readouterr().out
    assert call("task", "absent") == 2
    assert "no such file" in capsys.readouterr().err
    assert call("task", "good", "--target", "h100") == 2
    assert "--target 'h100': wanted cuda:" in capsys.readouterr().err


def test_a_failure_is_told_by_a_judge_that_can_judge_alone(
    tmp_path: Path, task: Task, variant: Variant, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine whose torch computes something else, a right kernel is no failure of its writer's."""
    (tmp_path / "task").write_text(task.source)
    (tmp_path / "right").write_text(variant())
    monkeypatch.setattr("torch.relu", torch.abs)
    for more in ([], ["--json"]):
        assert main(["judge", "--task", str(tmp_path / "task"), "--candidate", str(tmp_path / "right"), *more]) == 2
        told = capsys.readouterr()
        assert "no verdict: the judge fails a right kernel on this machine (fail, wrong_value" in told.err
        assert not told.out


def test_demanded_namespaces_are_not_silently_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    from core.evaluation import judge as module
    from core.evaluation.walls import sandbox

    monkeypatch.setattr(sandbox, "probe", lambda: sandbox.Walls(level="basic"))
    with pytest.raises(OSError, match="this machine refuses them"):
        module.choose_walls("namespaces")
