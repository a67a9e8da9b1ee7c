"""Whose turn it is with the device's memory, between the children of one task.

A child keeps what its allocator once had, so baseline and candidate of a task of gigabytes would stand beside each
other. In lean tasks a child gives its unused memory back before the other one's block. Getting it again is no part of a
kernel's time, so a child whose memory was given back makes an untimed call first. The trusted side gives back its own.

Where memory lies is a part of a kernel's time: beside processes that held nearly all of an H200's, calls that only
move memory took a tenth longer, for as long as the process kept what it had got then. So all give back before they are
timed, and get it anew where there is room.
"""

import time
from typing import Any

import torch

SCARCE = 0.1
"""Less of the device's memory is free where somebody takes all of it."""
ROOM_S = 3.0
"""Such a one ends soon, or is here to stay."""


class Turns:
    """Of one stage; children are GpuZygote."""

    def __init__(self, device: str, children: list[Any]) -> None:
        self._device, self._children = device, children
        self.lean = False
        self._in_vain = False
        """Whether nobody gave memory back when it was waited for last."""

    def take(self, child: Any) -> None:
        """The others give back, `child` is warm. Raises ChildFailed."""
        if self.lean:
            self.rest(but=child)
        if child.cold:
            child.ask("warm")

    def rest(self, but: Any = None) -> None:
        """All children but one give back what they don't use, this process too."""
        for other in self._children:
            if other is not but and other.running and not other.cold:
                other.ask("free")
        if self._device != "cpu":
            torch.cuda.empty_cache()

    def anew(self) -> None:
        """Under the lease, before timing: all memory is got again at the next turns, when nobody holds nearly all.
        Where somebody was seen to hold it for good, nobody is kept waiting for that."""
        self.rest()
        if self._device == "cpu":
            return
        until = time.monotonic() + (0.0 if self._in_vain else ROOM_S)
        while (scarce := self._scarce()) and time.monotonic() < until:
            time.sleep(0.02)
        self._in_vain = scarce

    def _scarce(self) -> bool:
        free, total = torch.cuda.mem_get_info(torch.device(self._device))
        return bool(free < SCARCE * total)
