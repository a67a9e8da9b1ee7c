"""A judge that fails right kernels on its machine says so before it judges anybody's."""

import asyncio

import pytest

from core.evaluation.judge import Judge
from core.evaluation.pool import JudgeError, JudgePool
from core.evaluation.proof import RIGHT, TASK, WRONG, prove
from core.evaluation.settings import JudgeSettings

BROKEN = """
import sys
if "core.evaluation.worker" in sys.orig_argv:
    import torch
    torch.relu = torch.abs
"""
"""A machine whose torch computes something else than its kernels do."""


def test_a_pool_on_a_machine_that_fails_right_kernels_does_not_start(tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(BROKEN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    async def start():
        pool = JudgePool(JudgeSettings(target="", speed="none"), workers=2)
        try:
            await pool.start()
        finally:
            await pool.stop()

    with pytest.raises(JudgeError, match=r"fails a right kernel on this machine \(fail, wrong_value: .*doctor"):
        asyncio.run(start())


class Lenient(Judge):
    """Takes the wrong kernel for the right one."""

    def judge(self, task, candidate, key):
        return super().judge(task, candidate.replace(" + 1.0", ""), key)


def test_a_judge_that_passes_wrong_kernels_is_refused():
    judge = Lenient(JudgeSettings(target="", speed="none"), slot=1)
    judge.start()
    try:
        judge.wait_ready()
        with pytest.raises(OSError, match="passes a wrong kernel"):
            prove(judge)
    finally:
        judge.stop()


def test_the_proof_is_a_right_kernel_and_the_same_with_a_mistake():
    assert WRONG != RIGHT
    judge = Judge(JudgeSettings(target="", speed="none"), slot=1)
    judge.start()
    try:
        judge.wait_ready()
        assert judge.judge(TASK, RIGHT, "right").kind == "pass"
        assert judge.judge(TASK, WRONG, "wrong").category == "wrong_value"
    finally:
        judge.stop()
