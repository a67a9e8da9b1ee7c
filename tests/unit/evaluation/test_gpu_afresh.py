"""What is remembered by value shows against eager, who remembers nothing; what new values cost everybody does not."""

import random

import pytest
import torch

from core.evaluation.gpu import afresh
from core.evaluation.gpu.clock import Clock, Side, Timed
from core.evaluation.gpu.outputs import MAX_PLACES, Outputs


class Machine:
    """A clock, and whether set 0 has values that nobody has seen. Writing them costs the next call `after_ms`."""

    def __init__(self, after_ms=0.0, stalls=lambda look: 0.0):
        self.now_s, self.fresh, self.looks, self.after_ms, self.stalls = 10.0, False, 0, after_ms, stalls
        self.device = "cuda"

    def now(self):
        return self.now_s

    def look(self):
        return False

    def fresh_in_place(self):
        self.fresh = True


class Child:
    def __init__(self, machine, ms, known_ms=None):
        self.machine, self.ms, self.known_ms = machine, ms, ms if known_ms is None else known_ms

    def ask(self, command, *arguments):
        assert command == "block"
        machine = self.machine
        machine.looks += 1
        ms = self.ms + machine.after_ms if machine.fresh else self.known_ms
        machine.fresh = False
        machine.now_s += (0.5 + ms + machine.stalls(machine.looks)) / 1e3


@pytest.fixture
def asked():
    held = []

    def ask(machine, candidate, eager, timed_ms=0.1):
        outs = [Outputs("cpu", [torch.zeros(64, device="meta")]) for _ in range(2)]
        held.extend(outs)
        sides = [Side(child=child, out=out) for child, out in zip((candidate, eager), outs, strict=True)]
        places = [torch.randint(0, 64, (MAX_PLACES,))]
        clock = Clock(machine, now=machine.now)
        clock.timed = Timed(flush_ms=0.2, idle_ms=0.3)
        return afresh.check(clock, machine, sides[0], places, random.Random(0), 0.1, timed_ms, sides[1])

    yield ask
    for out in held:
        out.close()


def test_who_computes_every_time_passes_at_once(asked):
    machine = Machine()
    assert asked(machine, Child(machine, 0.1), Child(machine, 0.2)) is None
    assert machine.looks == 2 * afresh.LOOKS


def test_what_new_values_cost_everybody_is_no_memory(asked):
    machine = Machine(after_ms=0.2)
    assert asked(machine, Child(machine, 0.1), Child(machine, 0.2)) is None


def test_stalls_of_the_machine_are_no_memory(asked):
    machine = Machine(stalls=lambda look: 0.0 if look > 20 else (look % 2 == 0) * 5.0)
    assert asked(machine, Child(machine, 0.1), Child(machine, 0.2)) is None


@pytest.mark.parametrize("after_ms", [0.0, 0.2])
def test_who_remembers_is_found(asked, after_ms):
    machine = Machine(after_ms)
    finding = asked(machine, Child(machine, 0.4, known_ms=0.1), Child(machine, 0.4))
    assert finding is not None and finding.category == "tampering"


@pytest.mark.parametrize("busy_looks", [5, 9, 20])
def test_a_busy_machine_hides_no_memory(asked, busy_looks):
    """Calls on known values are first made while it is busy: the odd ones, the candidate's way."""
    machine = Machine(stalls=lambda look: 0.3 if look <= busy_looks and look % 2 else 0.0)
    finding = asked(machine, Child(machine, 0.4, known_ms=0.1), Child(machine, 0.4))
    assert finding is not None and finding.category == "tampering"


def test_who_reads_below_the_floor_is_looked_at_as_it_was_read(asked):
    machine = Machine(stalls=lambda look: 0.15 if look <= 6 and look % 2 else 0.0)
    finding = asked(machine, Child(machine, 0.22, known_ms=0.01), Child(machine, 0.4), timed_ms=0.01)
    assert finding is not None


def test_one_call_that_is_dear_whatever_its_values_is_no_memory(asked):
    """Launches of one call wait for no earlier ones."""
    machine = Machine()
    assert asked(machine, Child(machine, 0.5), Child(machine, 0.2)) is None
    assert machine.looks == 2 * afresh.PLENTY
