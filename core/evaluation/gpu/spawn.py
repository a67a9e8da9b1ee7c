"""The trusted side's handle on GPU children: a zygote of kind `gpu`, one child at a time, orders with a deadline.

    begin -> ask -> ask -> end        one order, one answer
    begin -> order -> order -> ask    orders in a row, nobody waits: the next `ask` takes the answers first
    ahead                             the next child's fork and first order, while nobody asked for it yet

A child's time runs while it has an order to do, and stands still while the trusted side waits for the GPU or compares:
how many others judge on the same GPU must not decide who is too late.

A child that raises, dies, is too late or speaks nonsense is the candidate's doing: `ChildFailed` with the words for it.
A zygote that is gone is ours: `ZygoteError`.
"""

import contextlib
import os
import socket
import time
from typing import Any

import msgspec

from core.evaluation import zygote_messages
from core.evaluation.gpu.wire import Wire, WireClosed, WireGarbled
from core.evaluation.harness import CONFINED
from core.evaluation.spawn import Zygote, ZygoteError
from core.evaluation.walls import sandbox, scratch

_WALLS_S = 20.0
_END_S = 20.0
_WARMS = {"call": False, "block": False, "warm": False, "free": True, "drop": True}
"""Orders after which a child has memory for a call, or has none."""
UNENDED = "did not end its child"
"""How a ZygoteError says that a process may still be on the GPU."""
GARBLED = "Garbled"
"""`type` of an error that is ours, not the child's: no child may give it."""


class ChildFailed(Exception):
    """A child raised (`error`), or ended (`code`), or was stopped after its time (`timed_out`); `baseline`: not the
    candidate's child, but the one that runs the task itself."""

    def __init__(
        self, doing: str, error: dict[str, Any] | None = None, code: int | None = None, timed_out: bool = False,
        baseline: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(f"{doing}: {error or ('timed out' if timed_out else f'ended with {code}')}")
        self.doing, self.error, self.code, self.timed_out = doing, error, code, timed_out
        self.baseline = baseline


class GpuZygote(Zygote):
    """A zygote whose children hold a GPU."""

    def __init__(self, walls: sandbox.Walls, slot: int, baseline: bool = False) -> None:
        super().__init__("gpu", walls, slot)
        self.baseline = baseline
        self.cold = True
        """Whether the next call has to get memory from the driver first."""
        self._wire: Wire | None = None
        self._owed: list[str] = []
        """Orders whose answers were not taken yet."""
        self._ahead: tuple[sandbox.Limits, tuple[Any, ...]] | None = None
        self.deadline = 0.0
        """Of the present child, by the monotonic clock; put off by the time in which it has nothing to do."""
        self._idle_since = 0.0

    def ahead(self, limits: sandbox.Limits, *first: Any) -> None:
        """Fork the next child now and give it its first order; `begin` with the same arguments takes it."""
        self.begin(limits, *first)
        self._ahead = (limits, first)

    def begin(self, limits: sandbox.Limits, *first: Any) -> None:
        """Fork a child, wait for its walls and give it the order `first`; its time begins."""
        if self._ahead is not None:
            fits, self._ahead = self._ahead == (limits, first), None
            with contextlib.suppress(ChildFailed):  # it held nothing of a candidate's: another one then
                self.settle()
            if fits and self.running:
                self._idle_since = time.monotonic()
                self.deadline = self._idle_since + limits.wall_s
                return
            if self.running:
                self.end()
        self._fork(limits)
        if first:
            self.order(*first)

    def _fork(self, limits: sandbox.Limits) -> None:
        self.wait_ready()
        assert self._control is not None and self._wire is None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        quiet = os.open(os.devnull, os.O_WRONLY)
        try:
            if self._outer:
                scratch.renew(self._outer, self._uid, limits.tmp_mb)
            spawn = msgspec.msgpack.encode(zygote_messages.Spawn(limits=limits))
            socket.send_fds(self._control, [spawn], [theirs.fileno(), theirs.fileno(), quiet])
        except OSError as error:
            raise ZygoteError(f"the gpu zygote is gone: {error}") from error
        finally:
            theirs.close()
            os.close(quiet)
        self._wire = Wire(ours)
        if self._wire.first_byte(_WALLS_S) != CONFINED:
            self.end()
            raise ZygoteError("the candidate's sandbox could not be built (see the zygote's stderr)")
        self._idle_since = time.monotonic()
        self.deadline = self._idle_since + limits.wall_s
        self.cold = True

    def within(self, wall_s: float) -> None:
        """At most this much time from now on; for a child that has nothing to do."""
        now = time.monotonic()
        self.deadline = min(self.deadline + now - self._idle_since, now + wall_s)
        self._idle_since = now

    def ask(self, command: str, *arguments: Any, descriptors: tuple[int, ...] = ()) -> Any:
        """One order and its answer; raises ChildFailed, after which the child is gone."""
        self.settle()
        self.order(command, *arguments, descriptors=descriptors)
        return self._answer()

    def order(self, command: str, *arguments: Any, descriptors: tuple[int, ...] = ()) -> None:
        """One order; its answer is taken, and what fails is raised, by what asks next."""
        assert self._wire is not None
        now = time.monotonic()
        if not self._owed:
            self.deadline += now - self._idle_since
        try:
            self._wire.send([command, *arguments], descriptors, max(0.001, self.deadline - now))
        except TimeoutError:  # it does not even read
            self.end()
            raise ChildFailed(command, timed_out=True, baseline=self.baseline) from None
        except WireClosed:
            if not self._owed:
                raise self._gone(command) from None
        self._owed.append(command)

    def share(self, name: str, arena: Any) -> None:
        """The order to map an arena, with its descriptor."""
        descriptor = arena.descriptor()
        try:
            self.order("memory", name, arena.nbytes, descriptors=(descriptor,))
        finally:
            os.close(descriptor)

    def settle(self) -> None:
        """Wait for all orders; raises ChildFailed of the first that failed."""
        while self._owed:
            self._answer()

    def _answer(self) -> Any:
        assert self._wire is not None
        command = self._owed.pop(0)
        try:
            reply, received = self._wire.receive(max(0.001, self.deadline - time.monotonic()))
            self._idle_since = time.monotonic()
            for number in received:
                os.close(number)
        except TimeoutError:
            self.end()
            raise ChildFailed(command, timed_out=True, baseline=self.baseline) from None
        except WireGarbled as error:
            self.end()
            garbled = {"type": GARBLED, "message": str(error)}
            raise ChildFailed(command, error=garbled, baseline=self.baseline) from None
        except WireClosed:
            raise self._gone(command) from None
        if isinstance(reply, list) and len(reply) == 2 and reply[0] == "done":
            if command in _WARMS:
                self.cold = _WARMS[command]
            return reply[1]
        self.end()
        failed = isinstance(reply, list) and len(reply) == 2 and reply[0] == "failed" and isinstance(reply[1], dict)
        if failed and reply[1].get("type") == GARBLED:
            failed = False
        said = reply[1] if failed else {"type": GARBLED, "message": "its answer is none of ours"}
        raise ChildFailed(command, error=said, baseline=self.baseline)

    def _gone(self, command: str) -> ChildFailed:
        """Of a child that went without a word: how it ended."""
        exited = self.end()
        return ChildFailed(command, code=exited.code, timed_out=exited.out_of_time, baseline=self.baseline)

    def end(self) -> zygote_messages.Exited:
        """End the child, whatever it does; how it ended."""
        assert self._control is not None and self._wire is not None
        self._wire.close()
        self._wire, self._owed, self._ahead = None, [], None
        try:
            self._control.send(msgspec.msgpack.encode(zygote_messages.Kill()))
            self._control.settimeout(_END_S)
            report = self._control.recv(4096)
        except TimeoutError:
            raise ZygoteError(f"the gpu zygote {UNENDED} within {_END_S:.0f} s") from None
        except OSError as error:
            raise ZygoteError(f"the gpu zygote is gone: {error}") from error
        finally:
            self._control.settimeout(None)
        if not report:
            raise ZygoteError("the gpu zygote died")
        return msgspec.msgpack.decode(report, type=zygote_messages.Exited)

    @property
    def running(self) -> bool:
        return self._wire is not None

    @property
    def forked_ahead(self) -> bool:
        """Whether the present child waits for the next `begin`."""
        return self._ahead is not None

    def stop(self) -> None:
        if self._wire is not None:
            with contextlib.suppress(ZygoteError):
                self.end()
        super().stop()
