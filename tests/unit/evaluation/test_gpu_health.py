"""Quarantine, probes and repeated verdicts for real: on the CPU everywhere, on a GPU where there is one."""

import os
import subprocess
import sys
import threading

import pytest
import torch

from core.evaluation.gpu import health as gpu_health
from core.evaluation.gpu import probe as gpu_probe
from core.evaluation.gpu import probe_child as gpu_probe_child
from core.evaluation.gpu import processes as gpu_processes
from core.evaluation.gpu.condition import LOST, PROBES, RAN_ON, Probed
from core.evaluation.gpu.health import ContextLost, GpuHealth, GpuUnfit
from core.evaluation.gpu.spawn import GpuZygote
from core.evaluation.spawn import ZygoteError
from core.evaluation.verdict import Verdict
from core.evaluation.walls import sandbox

on_gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
GPU = pytest.param("cuda:0", marks=on_gpu)
PASSED = Probed(passed=True, seconds=0.1)


@pytest.fixture(scope="module")
def zygote():
    found = GpuZygote(sandbox.probe(), slot=96)
    found.start()
    found.wait_ready()
    yield found
    found.stop()


def verdict(kind="pass", category="", feedback="", **more):
    return Verdict(candidate_key="k", kind=kind, tier="gpu", category=category, feedback=feedback, **more)


BAD = verdict("fail", "out_of_bounds")


def health(folder, probe=lambda: PASSED, **more):
    return GpuHealth("cpu", probe=probe, folder=folder, **more)


# --- probes ---


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_a_probe_in_a_fresh_process_passes_and_tells_its_time(zygote, device):
    found = gpu_probe.warm(zygote, device, memory_mb=16)
    assert found.passed and found.memory_mb == 16, found.why
    assert 0 < found.seconds < gpu_probe.WARM_S and not zygote.running


def test_a_cold_probe_needs_no_zygote():
    found = gpu_probe.cold("cpu", memory_mb=2)
    assert found.passed and found.memory_mb == 2, found.why


@pytest.mark.parametrize("salt", [0, 1, 12345, (1 << 30) - 1])
def test_the_prober_knows_what_must_come_out(salt):
    answer = gpu_probe_child.ModelNew("cpu", salt, 3)()
    assert (gpu_probe.SIZE, gpu_probe.STEP) == (gpu_probe_child.SIZE, gpu_probe_child.STEP)
    assert gpu_probe.judged(answer, salt, 3, 0.1).passed
    assert not gpu_probe.judged(answer, salt + 1, 3, 0.1).passed


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"memory": [3, 1, 0]}, "does not hold"),
        ({"memory": [3, 0, 0]}, "does not hold"),
        ({"memory": [9, 0, 0]}, "9 MB"),
        ({"product": 7}, "product is wrong"),
        ({"memory": None}, "can't be read"),
        ({"product": "x"}, "can't be read"),
    ],
)
def test_a_wrong_answer_is_a_failed_probe(change, said):
    answer = gpu_probe_child.ModelNew("cpu", 5, 3)() | change
    found = gpu_probe.judged(answer, 5, 3, 0.1)
    assert not found.passed and said in found.why


def test_a_probe_of_a_device_that_is_not_there_fails_in_one_line(zygote):
    for found in (gpu_probe.warm(zygote, "cuda:77", memory_mb=1), gpu_probe.cold("cuda:77", memory_mb=1)):
        assert not found.passed and found.why and "\n" not in found.why
    assert gpu_probe.warm(zygote, "cpu", memory_mb=1).passed


def test_a_probe_that_does_not_answer_in_time_fails(zygote):
    assert "timed out" in gpu_probe.warm(zygote, "cpu", memory_mb=2048, wall_s=0.01).why
    assert "did not answer" in gpu_probe.cold("cpu", memory_mb=1, wall_s=0.01).why


def test_a_full_gpu_is_not_sick_until_it_stays_full(monkeypatch):
    full = Probed(passed=False, seconds=0.1, why="a probe failed: OutOfMemoryError: CUDA out of memory.")
    answers = [full, full, PASSED]
    monkeypatch.setattr(gpu_probe, "_warm", lambda *_: answers.pop(0))
    assert gpu_probe.warm(None, "cuda:0") is PASSED and answers == []
    answers = [full]
    assert gpu_probe.warm(None, "cuda:0", room_s=-1.0) is full


# --- quarantine ---


def test_a_fault_is_followed_by_a_probe_before_the_next_candidate(tmp_path, zygote):
    order = []

    def probe():
        order.append("probe")
        return gpu_probe.warm(zygote, "cpu", memory_mb=4)

    worker = health(tmp_path, probe, prober=zygote)
    assert worker.run(lambda: order.append("bad") or BAD) is BAD
    assert worker.condition().state == "quarantined"
    assert worker.run(lambda: order.append("good") or verdict()).kind == "pass"
    assert order == ["bad", "probe", "good"]
    condition = worker.condition()
    assert (condition.state, condition.probes_passed, condition.quarantines) == ("healthy", 1, 1)
    assert condition.faults == {"illegal_access": 1} and 0 < condition.recovery_s[0] < 60


def test_workers_share_the_quarantine_and_one_probe(tmp_path):
    probing, go, judged = threading.Event(), threading.Event(), []

    def slow():
        probing.set()
        go.wait(20)
        return PASSED

    workers = [health(tmp_path, slow) for _ in range(3)]
    workers[0].run(lambda: BAD)
    threads = [
        threading.Thread(target=lambda w=worker: judged.append(w.run(lambda: verdict()).kind)) for worker in workers
    ]
    for thread in threads:
        thread.start()
    assert probing.wait(20) and judged == []
    go.set()
    for thread in threads:
        thread.join(20)
    assert judged == ["pass"] * 3 and workers[0].condition().probes_passed == 1


def test_probe_after_probe_fails_and_the_work_goes_back_with_one_line(tmp_path, monkeypatch):
    longer = "core.evaluation.gpu.condition.Condition.backoff_s"
    monkeypatch.setattr(longer, lambda self: 60.0 * (self.state == "unfit"))
    failing = [True]

    def probe():
        return Probed(passed=not failing[0], seconds=0.1, why="a matrix product is wrong" if failing[0] else "")

    worker = health(tmp_path, probe)
    worker.fault("xid", "Xid 79")
    judged = []
    with pytest.raises(GpuUnfit) as caught:
        worker.run(lambda: judged.append(1) or verdict())
    assert "cpu is unfit" in str(caught.value) and "product is wrong" in str(caught.value)
    assert "\n" not in str(caught.value) and not judged
    assert worker.condition().probes_failed == PROBES
    with pytest.raises(GpuUnfit):
        health(tmp_path, probe).run(lambda: judged.append(1) or verdict())
    assert worker.condition().probes_failed == PROBES  # at once: it is not probed for every candidate
    failing[0] = False
    assert worker.probe_now().passed and worker.run(verdict).kind == "pass"


def test_a_verdict_beside_a_grave_fault_is_made_again_after_the_probe(tmp_path):
    worker, other = health(tmp_path), health(tmp_path)
    calls = []

    def judge():
        calls.append(1)
        if len(calls) == 1:
            other.fault("xid", "Xid 48")
        return verdict("fail", "wrong_value") if len(calls) == 1 else verdict()

    assert worker.run(judge).kind == "pass" and len(calls) == 2
    assert worker.condition().again == 1 and worker.condition().probes_passed == 1


def test_a_lost_context_of_another_worker_leaves_verdicts_as_they_are(tmp_path):
    worker, other = health(tmp_path), health(tmp_path)
    calls = []

    def judge():
        calls.append(1)
        other.fault("parent_error", "CUDA error: an illegal memory access was encountered")
        return verdict("fail", "wrong_value")

    assert worker.run(judge).category == "wrong_value" and len(calls) == 1
    assert (worker.condition().again, worker.condition().state) == (0, "healthy")


def test_a_verdict_of_the_source_alone_waits_for_no_probe(tmp_path):
    probes = []
    worker = health(tmp_path, lambda: probes.append(1) or PASSED)
    other = health(tmp_path)

    def judge():
        other.fault("xid", "Xid 48")
        return verdict("fail", "compile_error", stage="compile")

    assert worker.run(judge).category == "compile_error" and not probes


@pytest.mark.parametrize("words", ["CUDA error: unspecified launch failure", "cuCtxSynchronize: CUDA_ERROR_UNKNOWN"])
def test_a_judge_that_says_its_context_is_lost_must_end(tmp_path, words):
    worker = health(tmp_path)
    with pytest.raises(ContextLost, match="context is lost"):
        worker.run(lambda: verdict("infra", "infra", f"{LOST}, replace its process: {words}"))
    assert worker.condition().faults == {"parent_error": 1}


def test_who_is_said_to_keep_the_gpu_busy_is_judged_again_without_others(tmp_path):
    """It may have been others' kernels that ended when its process did: an honest candidate is not blamed for that."""
    worker, verdicts = health(tmp_path), []
    ran_on = verdict("fail", "tampering", f"timing: {RAN_ON}.")

    def judge():
        verdicts.append(ran_on if not verdicts else verdict())
        return verdicts[-1]

    assert worker.run(judge).kind == "pass" and len(verdicts) == 2
    assert worker.run(lambda: verdicts.append(0) or ran_on) is ran_on and len(verdicts) == 4


def test_beside_a_gpu_in_doubt_others_are_kept_away_from_the_last_attempt_only(tmp_path):
    worker, other = health(tmp_path), health(tmp_path)
    alone = []

    def judge():
        with other._shared.change() as kept:
            kept.condition.grave += 1
        try:
            with other._shared.sharing(False, 0.0):
                alone.append(False)
        except TimeoutError:
            alone.append(True)
        return verdict()

    assert worker.run(judge).kind == "pass"
    assert alone == [False, False, True]


def test_a_run_waits_for_no_longer_than_all_its_waits_may_take(tmp_path, monkeypatch):
    worker = health(tmp_path)
    monkeypatch.setattr(gpu_health, "WAIT_S", -1.0)
    worker.fault("xid", "Xid 48")
    with pytest.raises(GpuUnfit, match="quarantine"):
        worker.run(verdict)


def test_a_lack_of_memory_beside_others_is_looked_at_again_alone(tmp_path):
    text = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.80 GiB of which 1 GiB is free."
    workers = [health(tmp_path) for _ in range(2)]
    inside, leave, order = threading.Event(), threading.Event(), []

    def long():
        inside.set()
        leave.wait(20)
        order.append("other ended")
        return verdict()

    def short_of_memory():
        order.append("judged")
        leave.set()
        return verdict("fail", "memory", text) if order == ["judged"] else verdict()

    thread = threading.Thread(target=lambda: workers[1].run(long))
    thread.start()
    assert inside.wait(20)
    assert workers[0].run(short_of_memory).kind == "pass"
    thread.join(20)
    assert order == ["judged", "other ended", "judged"]
    assert workers[0].run(lambda: verdict("fail", "memory", text)).category == "memory"  # alone from the start


def test_this_process_without_memory_tries_alone_and_then_says_so(tmp_path):
    calls = []

    def judge():
        calls.append(1)
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        health(tmp_path).run(judge)
    assert len(calls) == 2


def test_a_prober_whose_zygote_is_gone_is_started_again(tmp_path):
    zygote = GpuZygote(sandbox.probe(), slot=98)
    zygote.start()
    zygote.wait_ready()
    try:
        worker = health(tmp_path, lambda: gpu_probe.warm(zygote, "cpu", memory_mb=1), prober=zygote)
        gpu_processes.kill(gpu_processes.below(os.getpid()) & {gpu_processes.this(zygote.pid)})
        worker.fault("illegal_access")
        worker.recover()
        assert worker.condition().state == "healthy"
    finally:
        zygote.stop()


def test_without_a_fresh_process_no_probe_passes(tmp_path):
    def none():
        raise ZygoteError("no more processes")

    found = health(tmp_path, none).probe_now()
    assert not found.passed and "no more processes" in found.why


def test_a_state_that_cant_be_read_is_begun_anew(tmp_path):
    worker = health(tmp_path)
    worker.fault("illegal_access")
    (path,) = [path for path in tmp_path.iterdir() if path.suffix == ""]
    path.write_bytes(b"\x93nonsense")
    assert worker.condition().state == "healthy" and worker.run(verdict).kind == "pass"


# --- processes ---

SLEEPER = "import time; print(flush=True); time.sleep(600)"


def sleeper():
    process = subprocess.Popen([sys.executable, "-c", SLEEPER], stdout=subprocess.PIPE)
    process.stdout.readline()
    return process, gpu_processes.this(process.pid)


def test_ghosts_are_our_own_dead_workers_children_and_nobody_elses():
    (child, mine), (foreign, theirs) = sleeper(), sleeper()
    try:
        me = gpu_processes.this(os.getpid())
        dead = gpu_processes.Process(pid=me.pid, start=me.start - 1)
        on_gpu = [mine.pid, theirs.pid, me.pid, 2**22 - 1]
        assert gpu_processes.ghosts(on_gpu, {mine: dead}, set()) == [mine]
        assert gpu_processes.ghosts(on_gpu, {mine: dead}, {mine}) == []
        recycled = gpu_processes.Process(pid=theirs.pid, start=theirs.start - 5)
        assert gpu_processes.ghosts(on_gpu, {recycled: dead}, set()) == []
        assert {mine, theirs} <= gpu_processes.below(os.getpid())
        assert gpu_processes.kill([recycled, mine]) == (1, [])
        assert child.wait(10) == -9 and foreign.poll() is None
        assert gpu_processes.this(child.pid) is None and gpu_processes.kill([mine]) == (0, [])
    finally:
        for process in (child, foreign):
            process.kill()
            process.wait()


def test_a_dead_workers_child_is_killed_by_the_next_worker_and_counted(tmp_path, zygote):
    """What the driver would say is given; the processes are real. The zygote's own are left alone."""
    child, mine = sleeper()
    try:
        worker = health(tmp_path, keep=[zygote])
        worker.note()
        reading = gpu_processes.Reading(used_mb=900, total_mb=1000, processes={mine.pid: 500, zygote.pid: 100})
        with worker._shared.change() as kept:  # as if the worker that had it were gone
            gone = gpu_processes.Process(pid=os.getpid(), start=1)
            kept.ours = [type(seen)(process=seen.process, worker=gone) for seen in kept.ours if seen.process == mine]
        next_one = health(tmp_path)
        next_one.note = lambda: None  # this process is the dead worker's stand-in: it must not claim the child again
        assert next_one.sweep(reading) == []
        assert child.wait(10) == -9 and next_one.condition().ghosts == 1 and zygote.pid
    finally:
        child.kill()
        child.wait()


def test_a_probe_that_a_person_asks_for_kills_no_worker_and_no_candidate(tmp_path):
    """The evaluator that answers is the parent of workers that judge on that GPU."""
    child, below_it = sleeper()
    try:
        evaluator = health(tmp_path)
        reading = gpu_processes.Reading(used_mb=900, total_mb=1000, processes={below_it.pid: 500})
        assert evaluator.sweep(reading) == [] and child.poll() is None
        assert evaluator.condition().ghosts == 0
    finally:
        child.kill()
        child.wait()


# --- a GPU's own word ---


@pytest.mark.parametrize("device", [pytest.param("cuda:0", marks=on_gpu)])
def test_an_endless_kernel_of_others_is_seen_and_its_end_too(device, tmp_path):
    worker = GpuHealth(device, probe=lambda: PASSED, folder=tmp_path)
    worker.quiet.calibrate()
    assert not worker.quiet.busy()
    code = (
        "import torch; x = torch.rand(16384, 16384, device='cuda'); y = x @ x; torch.cuda.synchronize(); "
        "print(flush=True)\nwhile True: torch.mm(x, x, out=y)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        process.stdout.readline()
        assert worker.quiet.busy()
    finally:
        process.kill()
        process.wait()
    assert worker.quiet.wait(10.0)
