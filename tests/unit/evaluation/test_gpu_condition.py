"""The state of a GPU and the words of verdicts: facts in, states out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.evaluation.gpu.condition import (
    FAULTS,
    KEPT,
    LOST,
    PROBES,
    RAN_ON,
    STAYS,
    TOO_LARGE,
    Condition,
    Fault,
    Probed,
    doubtful,
    fault_of,
    own_doing,
    read_gauges,
)  # fmt: skip
from core.evaluation.verdict import Verdict


def fault(category, at=100.0, pid=1, **more):
    return Fault(category=category, at=at, pid=pid, **more)


def verdict(kind="fail", category="", tier="gpu", feedback="", **more):
    return Verdict(candidate_key="k", kind=kind, category=category, tier=tier, feedback=feedback, **more)


PASSED, FAILED = Probed(passed=True, seconds=0.4), Probed(passed=False, seconds=2.0, why="no answer")


@pytest.mark.parametrize("category", FAULTS)
def test_a_fault_quarantines_by_its_kind_until_a_probe_passes(category):
    condition = Condition()
    condition.fault(fault(category))
    assert condition.faults == {category: 1}
    quarantines, grave, _ = FAULTS[category]
    assert (condition.state == "quarantined", bool(condition.grave)) == (quarantines, grave)
    condition.probed(PASSED, 103.0)
    assert condition.state == "healthy" and condition.probes_passed == 1
    assert condition.recovery_s == ([3.0] if quarantines else [])


def test_a_quarantine_begins_with_its_first_fault_and_counts_once():
    condition = Condition()
    condition.fault(fault("illegal_access", at=10.0))
    condition.fault(fault("illegal_access", at=12.0))
    condition.probed(PASSED, 13.0)
    assert (condition.quarantines, condition.recovery_s) == (1, [3.0])


def test_probes_that_fail_make_a_gpu_unfit_and_one_that_passes_mends_it():
    condition = Condition()
    pauses = []
    condition.fault(fault("illegal_access"))
    for number in range(PROBES):
        assert condition.state == "quarantined"
        condition.probed(FAILED, 101.0 + number)
        pauses.append(condition.backoff_s())
    assert condition.state == "unfit" and condition.grave == PROBES and condition.why == "no answer"
    assert pauses == sorted(pauses) and pauses[0] < 1
    condition.probed(PASSED, 200.0)
    assert (condition.state, condition.recovery_s, condition.backoff_s()) == ("healthy", [100.0], 0.0)


def test_a_probe_that_fails_on_a_healthy_gpu_is_a_fault():
    condition = Condition()
    condition.probed(FAILED, 5.0)
    assert (condition.state, condition.faults, condition.failed_in_row) == ("quarantined", {"probe": 1}, 1)


def test_an_unknown_fault_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="illegal_access"):
        Condition().fault(fault("bad luck"))


def test_a_programs_xid_after_the_fault_that_made_it_is_no_second_quarantine():
    condition = Condition()
    condition.fault(fault("illegal_access", at=10.0))
    condition.probed(PASSED, 10.5)
    assert condition.xid(31, 11.0, 1)
    assert condition.state == "healthy" and condition.faults["xid_program"] == 1
    assert condition.xid(31, 60.0, 1) and condition.state == "quarantined"
    assert condition.grave == 0
    assert condition.xid(79, 61.0, 1) and condition.grave == 1


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 12)), max_size=30), st.integers(0, 12))
def test_an_xid_that_every_worker_sees_is_counted_once(steps, late):
    """Workers look at any time, one begins to watch later, and each sees the same errors in the same order."""
    condition, happened, seen = Condition(), 0, {0: 0, 1: 0, 2: 0}
    for pid in seen:
        condition.watches(pid)
    for index, (who, more) in enumerate(steps):
        happened += more % 2
        if index == late and 3 not in seen:  # all others have looked when one is started: it restarts the counting
            for pid in seen:
                for _ in range(happened - seen[pid]):
                    condition.xid(79, 1.0, pid)
                seen[pid] = happened
            seen[3] = happened
            condition.watches(3)
        if who in seen:
            for _ in range(happened - seen[who]):
                condition.xid(79, 1.0, who)
            seen[who] = happened
    assert condition.xids == max(seen.values()) == condition.faults.get("xid", 0)


def test_what_is_remembered_is_bounded():
    condition = Condition()
    for number in range(3 * KEPT):
        condition.fault(fault("illegal_access", at=float(number)))
        condition.probed(PASSED, number + 0.5)
    assert len(condition.recent) == len(condition.recovery_s) == len(condition.probe_s) == KEPT
    assert condition.faults["illegal_access"] == condition.quarantines == 3 * KEPT


def test_a_beats_numbers_say_all_that_people_ask():
    condition = Condition(ghosts=2)
    condition.fault(fault("illegal_access", at=1.0))
    condition.fault(fault("endless", at=1.0))
    condition.probed(PASSED, 2.5)
    told = read_gauges({**condition.gauges(), "workers": 2.0})
    assert told["state"] == "healthy" and told["faults"] == {"endless": 1, "illegal_access": 1}
    assert (told["quarantines"], told["ghosts"], told["probes_passed"]) == (1, 2, 1)
    assert (told["last_probe_s"], told["recovery_s_last"], told["recovery_s_max"]) == (0.4, 1.5, 1.5)
    assert "workers" not in told
    assert read_gauges({"workers": 2.0}) is None


@pytest.mark.parametrize(
    ("found", "category"),
    [
        (verdict(category="out_of_bounds"), "illegal_access"),
        (verdict(category="out_of_bounds", tier="cpu"), ""),
        (verdict(category="timeout"), "endless"),
        (verdict(category="memory"), "out_of_memory"),
        (verdict(category="crash"), "crash"),
        (verdict(category="runtime_error", feedback="CUDA error: unspecified launch failure"), "device_error"),
        (verdict(kind="infra", feedback=f"{LOST}: cuCtxSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS (700)"), "parent_error"),
        (verdict(category="runtime_error", feedback="no such thing"), ""),
        (verdict(category="wrong_value"), ""),
        (verdict(kind="pass"), ""),
        (verdict(kind="infra", feedback="the gpu zygote did not end its child: timed out"), "unkillable"),
        (verdict(kind="infra", feedback="task x does not run: CUDA error: an illegal"), "parent_error"),
        (verdict(kind="infra", feedback="the disk is full"), ""),
    ],
)
def test_which_fault_a_verdict_stands_for(found, category):
    assert fault_of(found) == category


SMALL = (
    "memory: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.80 GiB of which 1.10 GiB is "
    "free. Including non-PyTorch memory, this process has 4.20 GiB memory in use."
)
LARGE = "CUDA out of memory. Tried to allocate 200.00 GiB. GPU 0 has a total capacity of 139.80 GiB of which 90 GiB is free."
SLOWLY = SMALL.replace("4.20 GiB", "135.00 GiB")


def test_whose_doing_a_lack_of_memory_is():
    assert own_doing(LARGE) and own_doing(SLOWLY)
    assert not own_doing(SMALL) and not own_doing("MemoryError")


@pytest.mark.parametrize(
    ("found", "circumstances", "again"),
    [
        (verdict(kind="pass", speed_kind="measured"), {}, False),
        (verdict(kind="pass", speed_kind="measured"), {"endless": True}, True),
        (verdict(kind="pass", speed_kind="measured"), {"company": True}, False),
        (verdict(kind="pass", speed_kind="measured"), {"grave": True}, True),
        (verdict(kind="pass"), {"endless": True}, False),
        (verdict(category="timeout"), {"endless": True}, True),
        (verdict(category="timeout"), {"company": True}, False),
        (verdict(category="memory", feedback=SMALL), {"company": True}, True),
        (verdict(category="memory", feedback=LARGE), {"company": True}, False),
        (verdict(category="memory", feedback=SMALL), {}, False),
        (verdict(category="wrong_value"), {"company": True, "endless": True}, False),
        (verdict(category="wrong_value"), {"grave": True}, True),
        (verdict(category="syntax_error", tier="static"), {"grave": True}, False),
        (verdict(kind="infra", feedback="CUDA out of memory. Tried"), {"company": True}, True),
        (verdict(kind="infra", feedback="cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY (2)"), {"company": True}, True),
        (verdict(kind="infra", feedback="the disk is full"), {"company": True}, False),
        (verdict(kind="unsupported"), {"grave": True}, False),
        (verdict(kind="unsupported", feedback=f"{TOO_LARGE} of 80 GB"), {"company": True}, True),
        (verdict(kind="unsupported", feedback=f"{TOO_LARGE} of 80 GB"), {}, False),
        (verdict(category="compile_error", stage="compile"), {"grave": True}, False),
        (verdict(category="wrong_value", tier="cpu"), {"grave": True}, False),
        (verdict(category="tampering", feedback=RAN_ON), {}, True),
        (verdict(category="tampering", feedback=RAN_ON), {"alone": True}, False),
        (verdict(category="tampering", feedback="it set tf32"), {}, False),
    ],
)
def test_which_verdicts_are_made_again(found, circumstances, again):
    given_ = {"company": False, "endless": False, "grave": False, "alone": False} | circumstances
    assert bool(doubtful(found, **given_)) is again


def test_only_another_workers_endless_candidate_counts_and_only_a_late_one():
    condition = Condition()
    condition.fault(fault("endless", at=50.0, pid=7))
    assert condition.endless_since(40.0, 8)
    assert not condition.endless_since(40.0, 7) and not condition.endless_since(60.0, 8)


@pytest.mark.parametrize("category", ["parent_error", "unkillable", "illegal_access", "endless"])
def test_one_processs_trouble_spoils_nobody_elses_verdict_while_probes_pass(category):
    """Or one lost context has every verdict in flight made again."""
    condition = Condition()
    condition.fault(fault(category))
    condition.probed(PASSED, 101.0)
    assert condition.grave == 0


@pytest.mark.parametrize(
    ("why", "grave"),
    [
        ("no answer", 1),
        ("memory does not hold what was written: 3 of 9 numbers differ", 1),
        ("a probe failed: OutOfMemoryError: CUDA out of memory.", 0),
        (f"process 17 {STAYS}", 0),
    ],
)
@pytest.mark.parametrize("before", [(), ("illegal_access",)])
def test_a_failed_probe_spoils_verdicts_unless_it_only_found_no_room(why, grave, before):
    condition = Condition()
    for category in before:
        condition.fault(fault(category))
    condition.probed(Probed(passed=False, seconds=1.0, why=why), 101.0)
    assert condition.grave == grave and condition.state == "quarantined" and condition.failed_in_row == 1


def test_an_xid_of_this_judges_own_fault_is_no_second_quarantine():
    condition = Condition()
    condition.fault(fault("parent_error", at=10.0))
    condition.probed(PASSED, 10.5)
    condition.xid(31, 11.0, 1)
    assert condition.state == "healthy"
