"""Who prepares a batch waits while a step begins, and only then."""

import threading

import pytest
import torch

from core.training import meanwhile
from core.training.meanwhile import Meanwhile


def waiting(beside):
    """A thread that waits, and its end."""
    over = threading.Event()
    thread = threading.Thread(target=lambda: (beside.wait(), over.set()), daemon=True)
    thread.start()
    return over


def test_it_waits_until_the_gpu_has_work():
    beside = Meanwhile(torch.device("cuda"))
    assert waiting(beside).wait(10)  # no step
    with beside.step():
        over = waiting(beside)
        assert not over.wait(0.2)
        beside.queued()
        assert over.wait(10)
        assert waiting(beside).wait(10)  # for the rest of the step


def test_a_step_that_is_over_or_fails_keeps_nobody_waiting():
    beside = Meanwhile(torch.device("cuda"))
    with pytest.raises(ZeroDivisionError), beside.step():
        over = waiting(beside)
        raise ZeroDivisionError
    assert over.wait(10)


def test_a_step_that_takes_long_to_begin_keeps_nobody_for_ever(monkeypatch):
    monkeypatch.setattr(meanwhile, "MOST_S", 0.2)
    beside = Meanwhile(torch.device("cuda"))
    with beside.step():
        assert waiting(beside).wait(10)


def test_without_a_gpu_nobody_waits():
    beside = Meanwhile(torch.device("cpu"))
    with beside.step():
        assert waiting(beside).wait(10)
