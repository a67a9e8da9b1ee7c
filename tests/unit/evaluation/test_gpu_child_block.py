"""What a child does around every timed call, step by step: nothing that another call left may make it quick."""

import pytest
import torch

from core.evaluation.gpu.child import Child


class _Noted:
    """Says its name when it is used."""

    def __init__(self, steps, name):
        self.record = self.zero_ = lambda: steps.append(name)


@pytest.fixture
def child(tmp_path):
    """A child without a process: its own block, with a note of every step."""
    found, steps = Child(str(tmp_path)), []
    found._device, found._sets = "cpu", [([torch.zeros(2)], {}), ([torch.ones(2)], {})]
    found._synchronize = lambda: steps.append("synchronize")
    found._reset_cache = lambda: steps.append("reset")
    found._flush = _Noted(steps, "flush")
    names = iter(("start", "end") * 100)
    found._new_event = lambda: _Noted(steps, next(names))
    found._model = lambda x: steps.append(f"call on {x[0]:.0f}") or x
    found._decode = lambda tree: tree
    found.steps = steps
    return found


def test_each_timed_call_is_flushed_before_its_clock_starts_and_the_device_is_idle_at_the_end(child):
    samples = torch.full((3, 1), -1.0)
    child._block(3, 1, -1, [torch.tensor([1])], [samples])
    calls = [["reset", "flush", "start", f"call on {which}", "end"] for which in (1, 0, 1)]
    assert child.steps == [*calls[0], *calls[1], *calls[2], "synchronize"]
    assert samples.flatten().tolist() == [1, 0, 1]


def test_the_flushes_that_the_wall_takes_off_are_those_of_a_block(child):
    child._output = []
    child._flushes(2, [], [])
    assert child.steps == [*(["reset", "flush", "start", "end"] * 2), "synchronize"]
