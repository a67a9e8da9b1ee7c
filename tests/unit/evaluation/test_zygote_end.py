"""A zygote whose owner is gone ends, and says nothing: there is no trouble to tell anybody of."""

import pytest

from core.evaluation.spawn import Zygote
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
