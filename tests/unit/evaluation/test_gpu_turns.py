"""Waiting for room before memory is got anew; the driver is one that says what the test wants."""

import pytest
import torch

from core.evaluation.gpu import turns as gpu_turns
from core.evaluation.gpu.turns import Turns


class _Child:
    running, cold = True, False

    def __init__(self, told):
        self._told = told

    def ask(self, command):
        self._told.append(command)
        self.cold = command == "free"


class _Card:
    """Its time goes on while it is waited, and `free` percent of it are free at each second."""

    def __init__(self, *free):
        self.now, self._free = 100.0, free

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds

    def mem_get_info(self, device):
        return self._free[min(int(self.now - 100.0), len(self._free) - 1)], 100


@pytest.fixture
def card(monkeypatch):
    def use(*free):
        found = _Card(*free)
        monkeypatch.setattr(gpu_turns, "time", found)
        monkeypatch.setattr(torch.cuda, "mem_get_info", found.mem_get_info)
        return found

    return use


def test_all_memory_is_given_back_and_got_again_when_somebody_has_let_go_of_it(card):
    told, now = [], card(1, 2, 80)
    children = [_Child(told), _Child(told)]
    turns = Turns("cuda:0", children)
    turns.anew()
    assert told == ["free", "free"] and 2.0 <= now.now - 100.0 < 2.1
    turns.take(children[0])
    assert told == ["free", "free", "warm"]


def test_who_holds_it_for_good_keeps_nobody_waiting_again(card):
    now, turns = card(1), Turns("cuda:0", [])
    turns.anew()
    waited = now.now - 100.0
    assert gpu_turns.ROOM_S <= waited < gpu_turns.ROOM_S + 0.1
    turns.anew()
    assert now.now - 100.0 == waited
    now = card(80)  # gone at last: who comes then is waited for again
    turns.anew()
    now = card(1, 80)
    turns.anew()
    assert 1.0 <= now.now - 100.0 < 1.1
