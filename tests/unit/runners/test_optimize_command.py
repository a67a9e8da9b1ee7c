"""`kernelmill optimize`: the shipped policy writes a kernel for a module of one's own, judged by a real judge."""

import json
import shutil
import signal
import subprocess
import sys

import pytest
from typed import ROOT, kernelmill, refused

from core.evaluation.verdict import Verdict
from core.record.best import Kernel
from core.tasks.task import Task
from runners.optimize import Found

DEMO = ("--config", ROOT / "configs" / "demo.toml", "--model", ROOT / "configs" / "policies" / "demo")
MODULE = """
import torch
import torch.nn as nn

N = 1000


class Model(nn.Module):
    def forward(self, x, y):
        a = torch.maximum(x, y)
        b = torch.abs(a)
        return b


def get_inputs():
    return [torch.randn(N), torch.randn(N)]


def get_init_inputs():
    return []
"""


@pytest.fixture
def module(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(MODULE)
    return path


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    """In the folder of a run, as `export` leaves it."""
    run = tmp_path_factory.mktemp("runs") / "run"
    (run / "record").mkdir(parents=True)
    resolved = kernelmill("up", DEMO[1], "judge.draws=2", "--dry-run")
    (run / "config.json").write_text(resolved.stdout)
    shutil.copytree(DEMO[3], run / "policy")
    return run / "policy"


def test_a_run_s_policy_writes_a_kernel_that_is_judged_again(module, policy, tmp_path):
    done = kernelmill("optimize", module, "--model", policy, "--samples", 12, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "kernelmill optimize: attempt " in done.stderr and "x modelled, " in done.stderr
    told = json.loads(done.stdout)
    assert told["kernel"] == "mine_kernel.py" and told["attempts"] == 12 and told["right"] >= 1
    assert told["verdict"]["kind"] == "pass" and told["verdict"]["speedup"] > 1.0
    assert "class ModelNew" in (tmp_path / "mine_kernel.py").read_text()
    refused(kernelmill("optimize", module, "--model", policy, cwd=tmp_path), "mine_kernel.py is there already")


def test_a_module_beyond_the_policy_has_no_kernel(tmp_path):
    module = tmp_path / "hard.py"
    module.write_text(MODULE.replace("torch.abs(a)", "torch.linalg.inv(a.view(10, 100) @ a.view(100, 10))"))
    done = kernelmill("optimize", module, *DEMO, "--samples", 2, "judge.draws=2", cwd=tmp_path)
    assert done.returncode == 1 and done.stdout == ""
    assert "no kernel passed: " in done.stderr and "; for example " in done.stderr
    assert not (tmp_path / "hard_kernel.py").exists()


def test_what_is_found_stands_when_it_is_interrupted(module, tmp_path):
    command = [sys.executable, "-m", "runners.cli", "optimize", module, *DEMO, "--samples", "5000"]
    one = subprocess.Popen(
        [*map(str, command), "--out", str(tmp_path / "k.py"), "judge.draws=2"],
        cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    told = next(line for line in one.stderr if "attempt" in line)
    one.send_signal(signal.SIGINT)
    _, err = one.communicate(timeout=60)
    assert one.returncode == 130, told + err
    assert f"the fastest kernel so far is in {tmp_path / 'k.py'}; it was not judged again" in err
    assert "class ModelNew" in (tmp_path / "k.py").read_text()


def test_what_can_not_be_used_is_one_line(module, tmp_path):
    (tmp_path / "bare.py").write_text("class Model: pass\n")
    refused(kernelmill("optimize", tmp_path / "none.py", *DEMO), "none.py")
    refused(kernelmill("optimize", tmp_path / "bare.py", *DEMO), "lacks a function get_inputs()")
    refused(kernelmill("optimize", module, *DEMO, "--samples", 0), "--samples 0: wanted at least 1")
    refused(kernelmill("optimize", module, *DEMO, "--out", tmp_path / "no" / "k.py"), "--out")
    refused(kernelmill("optimize", module, *DEMO[2:]), "lies in no run's folder: give --config")
    refused(kernelmill("optimize", module, "--model", tmp_path / "none"), "there is no such folder")
    (tmp_path / "run" / "record").mkdir(parents=True)
    refused(kernelmill("optimize", module, "--model", tmp_path / "run"), "is a run: `kernelmill export")
    (tmp_path / "link.py").symlink_to("nothing")
    refused(kernelmill("optimize", module, *DEMO, "--out", tmp_path / "link.py"), "is there already")
    refused(kernelmill("optimize", module, *DEMO[:2], "--model", tmp_path), "config.json")
    gpu = ("judge.device_class=h100", "judge.speed=measured")
    refused(kernelmill("optimize", module, *DEMO, *gpu), "no GPU", "judge.device_class=cpu")


def test_a_module_that_does_not_run_is_not_the_kernels_fault(tmp_path):
    module = tmp_path / "broken.py"
    module.write_text(MODULE.replace("return [torch.randn(N), torch.randn(N)]", 'raise RuntimeError("boo")'))
    done = kernelmill("optimize", module, *DEMO, cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.splitlines()[-1].endswith(
        "broken can't be judged here: task file/broken does not run: RuntimeError: boo"
    )


def test_a_file_that_came_meanwhile_is_not_written_over(tmp_path):
    found = Found(Task(task_id="t", name="t", level=1, origin="o", source=""), None, 1, tmp_path / "k.py")
    kernel = Kernel(
        task_id="t",
        level=1,
        source="new",
        verdict=Verdict(candidate_key="k", kind="pass"),
        episode="0",
        turn=0,
        version=0,
    )
    (tmp_path / "k.py").write_text("another's")
    (tmp_path / "k-2.py").symlink_to("nothing")
    found.write(kernel)
    assert (tmp_path / "k.py").read_text() == "another's" and found.out == tmp_path / "k-3.py"
    assert found.out.read_text() == "new"
