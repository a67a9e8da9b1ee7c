"""A zygote whose owner is gone ends, and says nothing: there is no trouble to tell anybody of."""

import pytest

from core.evaluation.spawn import Zygote, ZygoteError
from core.evaluation.walls import sandbox

DEADLINE_S = 100.0


@pytest.mark.parametrize("when", ["before it is ready", "when it is ready", "with its answer unread"])
def test_it_ends_quietly(when, capfd):
    zygote = Zygote("compile", sandbox.probe(), 97)
    zygote.start()
    try:
        if when == "when it is ready":
            zygote.wait_ready(DEADLINE_S)
        elif when == "with its answer unread":
            assert zygote._control.recv(1, 2)  # MSG_PEEK: an end that closes with something unread resets the other
        zygote._control.close()
        assert zygote._process.wait(DEADLINE_S) == 0
    finally:
        zygote._process.kill()
        zygote.stop()
    assert capfd.readouterr().err == ""


def test_one_that_ends_while_it_starts_is_told_at_once():
    zygote = Zygote("compile", sandbox.probe(), 97)
    zygote.start()
    try:
        zygote._process.kill()
        with pytest.raises(ZygoteError, match="ended while it started"):
            zygote.wait_ready(DEADLINE_S)
    finally:
        zygote.stop()
