"""How many are somewhere, and for how many seconds they have been there, all together.

    with present:                       # beside others
        verdict = await judge(...)
    present.count, present.seconds      # 3, 41.7: so many person-hours, as it were

The seconds of two looks, one from the other, over the time between them are the mean count of that time, exactly,
however rarely one looks. One event loop, one thread.
"""

import time
from types import TracebackType


class Present:
    def __init__(self) -> None:
        self.count = 0
        self._seconds = 0.0
        self._since = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Until now, of those who are still there as well."""
        self._move(0)
        return self._seconds

    def _move(self, change: int) -> None:
        now = time.perf_counter()
        self._seconds += self.count * (now - self._since)
        self._since = now
        self.count += change

    def __enter__(self) -> "Present":
        self._move(1)
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._move(-1)
