"""Whether somebody else's kernels run: what readings say, and measurements that are made again."""

import pytest

from core.evaluation.gpu.quiet import BUSY, FILLS, NeverQuietError, Quiet, is_busy


def test_busy_is_slow_every_time():
    assert is_busy([2.0, 1.9], 1.0) and not is_busy([2.0, 1.0], 1.0)
    assert not is_busy([], 1.0) and not is_busy([5.0], 0.0) and not is_busy([BUSY], 1.0)


class Readings(Quiet):
    """A Quiet with readings that are given."""

    def __init__(self, readings):
        self.usual = 1.0
        super().__init__("given", lambda: self.usual, lambda reading: setattr(self, "usual", min(self.usual, reading)))
        self._readings = iter(readings)

    def reading(self, fills=FILLS):
        return next(self._readings)


def test_a_measurement_that_was_disturbed_is_made_again():
    measured = []
    quiet = Readings([1.0, *[2.0] * 5, 1.0, 1.1])  # quiet; busy afterwards; quiet; quiet
    assert quiet.around(lambda: measured.append(1) or len(measured)) == 2
    assert (quiet.measured_again, quiet.looked) == (1, True)


def test_no_quiet_is_said():
    with pytest.raises(NeverQuietError, match="somebody else's kernels"):
        Readings([3.0] * 5).around(lambda: 1, most_s=0.0)


def test_quiet_between_disturbances_is_no_endless_kernel():
    readings = [part for _ in range(3) for part in ([1.0], [2.0] * 5)]
    with pytest.raises(TimeoutError, match="all the time") as caught:
        Readings([number for part in readings for number in part]).around(lambda: 1)
    assert not isinstance(caught.value, NeverQuietError)


def test_a_glance_wants_two_slow_readings():
    assert Readings([2.0, 2.0]).glance()
    assert not Readings([2.0, 1.0]).glance() and not Readings([1.0]).glance()
    assert not Quiet("cpu", lambda: 1.0, lambda _: None).glance()


def test_who_was_disturbed_waits_for_quiet_and_is_told_when_there_is_none():
    quiet = Readings([*[2.0] * 5, 1.0])
    quiet.calm_down(9.0)
    assert quiet.blocks_again == 1
    with pytest.raises(NeverQuietError, match="for 0 s"):
        Readings([3.0] * 5).calm_down(0.0)
