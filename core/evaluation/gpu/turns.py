"""Whose turn it is with the device's memory, between the children of one task.

A child keeps what its allocator once had, so baseline and candidate of a task of gigabytes would stand beside each
other. In lean tasks a child gives its unused memory back before the other one's block. Getting it again is no part of a
kernel's time, so a child whose memory was given back makes an untimed call first. The trusted side gives back its own.
"""

from typing import Any

import torch


class Turns:
    """Of one stage; children are GpuZygote."""

    def __init__(self, device: str, children: list[Any]) -> None:
        self._device, self._children = device, children
        self.lean = False

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
