"""A judge's worker process: reads requests from its socket, judges, answers, one at a time; dies with its parent.

`core.evaluation.pool` only starts it: with a GPU as `python -m core.evaluation.worker FD PARENT SLOT PROVES`, else
forked from a nursery of the pool's workers, `python -m core.evaluation.worker FD PARENT`. Messages are MessagePack with
a length of 4 bytes in front. First the settings arrive and `Hello` or `Refused` goes back; then requests and
answers.
"""

import contextlib
import os
import socket
import sys
from typing import Any

import msgspec

from core.evaluation.settings import JudgeSettings
from core.evaluation.verdict import Verdict
from core.evaluation.walls import linux
from core.tasks.task import Task


class Request(msgspec.Struct, frozen=True, kw_only=True):
    task: Task
    candidate: str
    key: str


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag="hello"):
    """The worker can judge; `walls` says how strong its sandbox is, `gpu` which one it judges on (empty: none)."""

    walls: str
    level: str
    gpu: str = ""


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """The worker can't judge under these settings."""

    reason: str


class Answer(msgspec.Struct, frozen=True, kw_only=True, tag="answer"):
    verdict: Verdict
    lease_s: float = 0.0
    """Of judging it: how long this worker had the GPU to itself."""


class Unfit(msgspec.Struct, frozen=True, kw_only=True, tag="unfit"):
    """The worker can't judge now, and the candidate was not judged."""

    reason: str


class Lost(msgspec.Struct, frozen=True, kw_only=True, tag="lost"):
    """The worker's own CUDA context is broken: it ends now, and the candidate was not judged."""

    reason: str


Reply = Hello | Refused | Answer | Unfit | Lost


def pack(message: Any) -> bytes:
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(4, "little") + body


def _read(stream: Any, count: int) -> bytes:
    data = stream.read(count)
    return data if data is not None and len(data) == count else b""


def main(fd: int, parent: int, slot: int, proves: int) -> int:
    """`proves`: the judge proves itself on its GPU before it says hello."""
    linux.die_with_parent(parent)
    linux.set_dumpable(False)
    connection = socket.socket(fileno=fd)
    stream = connection.makefile("rb")

    def receive(kind: type) -> Any:
        head = _read(stream, 4)
        body = _read(stream, int.from_bytes(head, "little")) if head else b""
        return msgspec.msgpack.decode(body, type=kind) if body else None

    settings = receive(JudgeSettings)
    if settings is None:
        return 0
    import torch

    torch.set_num_threads(1)
    from core.evaluation.gpu.health import ContextLost, GpuUnfit
    from core.evaluation.gpu.lease import alone_s
    from core.evaluation.spawn import ZygoteError
    from core.evaluation.tiers import open_judge

    try:
        judge = open_judge(settings, slot, bool(proves))
        judge.start()
        judge.wait_ready()
    except (OSError, ZygoteError) as error:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(pack(Refused(reason=str(error))))
        return 1
    gpu = torch.cuda.get_device_name(0) if settings.on_gpu else ""
    try:
        connection.sendall(pack(Hello(walls=judge.walls.describe(), level=judge.walls.level, gpu=gpu)))
        while (request := receive(Request)) is not None:
            had_s = alone_s()
            try:
                verdict = judge.judge(request.task, request.candidate, request.key)
            except GpuUnfit as error:
                connection.sendall(pack(Unfit(reason=str(error))))
                continue
            except ContextLost as error:
                connection.sendall(pack(Lost(reason=str(error))))
                break
            connection.sendall(pack(Answer(verdict=verdict, lease_s=alone_s() - had_s)))
            judge.rest()
    except (BrokenPipeError, ConnectionResetError):
        pass  # the parent is gone
    finally:
        judge.stop()
    return 0


def nurse(orders: int, owner: int) -> None:
    """Entry of the nursery of a pool's workers."""
    if owner:
        linux.die_with_parent(owner)
    linux.set_dumpable(False)
    from core.evaluation import nursery, spawn

    keep = spawn.prepare()  # it imports beside this process
    import torch
    import torch.fx.experimental.symbolic_shapes  # for the meta device

    from core.evaluation import meta_operators, tiers  # noqa: F401

    torch.set_num_threads(1)
    meta_operators.need_no_compiler()
    nursery.serve(orders, _forked, keep)


def _forked(fd: int, parent: int, slot: int, proves: int) -> None:
    import numpy

    numpy.random.seed()  # torch and Python have new states in a fork, or are given one
    sys.exit(main(fd, parent, slot, proves))


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:5]]
    if len(numbers) == 2:
        nurse(*numbers)
    else:
        sys.exit(main(*numbers) if len(numbers) == 4 else os.EX_USAGE)
