"""The process that audits tasks: one child per task, so that a task that hangs, dies or eats memory ends only itself.

`python -m core.evaluation.audit.server` is started by `core.evaluation.audit.auditor` only. It imports torch once and
computes nothing (a child forked after that would hang; the meta device is free of it), reads `Order`s from stdin,
forks, waits with a deadline and answers each with an `Audit`, one JSON line each. A task that runs out of time or
memory is tried again at an eighth of the sizes. A flag on a task of which more than the batch was made smaller is only
believed when an audit at other, larger sizes agrees.
"""

import os
import resource
import select
import signal
import sys
import time

import msgspec

from core.evaluation.walls import linux
from core.tasks.audit import FLAGS, OURS, Audit, Sizes, Status, audit_key
from core.tasks.format import TaskError, with_profile

ATTEMPTS = (1.0, 1 / 8, 1 / 64)
"""Parts of the budget, in the order in which they are tried."""
SECOND = (4.0, 2.0, 1.0)
"""The same for the second audit of a doubtful flag, which spares the numbers that the first one cut."""
SECOND_TIME = 2.0
"""Factor on the wall time of a second audit: few tasks need one, and a late one leaves a flag undecided."""
LONGEST = len(ATTEMPTS) + SECOND_TIME * len(SECOND)
"""The longest that one task may take, in units of its wall time."""

WARM_UP = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
    def forward(self, x):
        return torch.relu(self.linear(x))
def get_inputs():
    return [torch.rand(4, 4)]
def get_init_inputs():
    return []
"""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """One task to audit."""

    task_id: str
    source: str
    profile: str = "cpu"
    wall_s: float = 60.0
    """For one attempt."""
    memory_mb: int = 4096
    share: float = 1.0
    """Of the budget (`core.evaluation.audit.shrink`) that its sizes must fit."""


class Answer(msgspec.Struct, kw_only=True):
    """What a child found out before it ended."""

    margins: dict[str, dict[str, float]] = {}
    own: dict[str, float] = {}
    training: bool = True
    outputs: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    scaled: Sizes = {}
    doubt: str = ""
    reason: str = ""
    smaller: bool = False
    """Worth another attempt at smaller sizes."""


def audit(order: Order) -> Audit:
    """Audit one task in children of this process."""
    started = time.monotonic()
    answer = _first(order, ATTEMPTS, frozenset())
    status, answer.reason = verdict(answer)
    if status in FLAGS and answer.doubt:
        status, answer = _agreed(order, status, answer)
    return Audit(
        task_id=order.task_id,
        key=audit_key(order.source, order.profile, order.share),
        status=status,
        reason=answer.reason,
        scaled=answer.scaled,
        training=answer.training,
        outputs=answer.outputs,
        margins=answer.margins,
        own=answer.own,
        notes=answer.notes,
        seconds=round(time.monotonic() - started, 2),
    )


def verdict(answer: Answer) -> tuple[Status, str]:
    """(status, reason) of what was measured at one choice of sizes."""
    if not answer.margins:
        return "unknown", answer.reason
    passing = [name for name, margin in answer.margins[OURS].items() if margin <= 1]
    if passing:
        return "degenerate", f"accepts {', '.join(passing)}"
    if answer.own[OURS] > 1:
        return "noise", f"its own output misses the tolerance by a factor of {answer.own[OURS]:.3g}"
    return "sound", ""


def _agreed(order: Order, status: Status, answer: Answer) -> tuple[Status, Answer]:
    """What holds of a doubtful flag after a second audit at other sizes."""
    sizes = " ".join(f"{name}={new}" for name, (_, new) in answer.scaled.items())
    longer = msgspec.structs.replace(order, wall_s=SECOND_TIME * order.wall_s)
    second = _first(longer, SECOND, frozenset(answer.scaled))
    again, why = verdict(second)
    if again == "unknown" or second.scaled == answer.scaled:
        missing = "no other sizes fit" if second.scaled == answer.scaled else why
        answer.reason = f"{answer.reason} at {sizes}, but {answer.doubt}, and there is no second audit: {missing}"
        return "unknown", answer
    if again in FLAGS:
        second.reason = why
        second.notes += (f"{answer.reason} also at {sizes}",)
        return again, second
    second.reason = ""
    second.notes += (f"{answer.reason} at {sizes}, not at the sizes of this row",)
    return again, second


def _first(order: Order, factors: tuple[float, ...], avoid: frozenset[str]) -> Answer:
    """The first attempt that ends within time and memory, else the last one."""
    answer = Answer()
    for factor in factors:
        answer = _attempt(order, factor, avoid)
        if not answer.smaller:
            break
    return answer


def _attempt(order: Order, factor: float, avoid: frozenset[str]) -> Answer:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _in_child(order, factor, avoid, writer)
    os.close(writer)
    data, deadline = bytearray(), time.monotonic() + order.wall_s
    late = False
    while True:
        left = deadline - time.monotonic()
        ready, _, _ = select.select([reader], [], [], max(left, 0))
        late = not ready
        block = os.read(reader, 65536) if ready else b""
        if not block:
            break
        data += block
    os.close(reader)
    for kill, target in ((os.killpg, child), (os.kill, child)):
        try:
            kill(target, signal.SIGKILL)
        except ProcessLookupError:
            continue
    _, status = os.waitpid(child, 0)
    if data:
        try:
            return msgspec.msgpack.decode(bytes(data), type=Answer)
        except msgspec.DecodeError:
            late = True
    if late:
        return Answer(reason=f"no answer within {order.wall_s:g} s", smaller=True)
    ended = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit code {os.WEXITSTATUS(status)}"
    return Answer(reason=f"its process ended with {ended}", smaller=os.WIFSIGNALED(status))


def _in_child(order: Order, factor: float, avoid: frozenset[str], writer: int) -> None:
    """Measure, write the answer, end; never returns."""
    answer = Answer()
    try:
        os.setpgid(0, 0)
        linux.die_with_parent(0)
        with open("/proc/self/statm") as sizes:
            in_use = int(sizes.read().split()[0]) * resource.getpagesize()
        limit = in_use + order.memory_mb * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        measure_into(answer, order, factor, avoid)
    except BaseException as error:
        text = " ".join(str(error).split())
        answer.smaller = isinstance(error, MemoryError) or "can't allocate memory" in text
        known = isinstance(error, TaskError | ValueError) and type(error).__module__.startswith("core.")
        answer.reason = text[:300] if known else f"{type(error).__name__}: {text}"[:300]
    try:
        os.write(writer, msgspec.msgpack.encode(answer))
    finally:
        os._exit(0)


def measure_into(answer: Answer, order: Order, factor: float = 1.0, avoid: frozenset[str] = frozenset()) -> None:
    """Audit in this process, at sizes that fit a part of the budget; `answer` holds what was found when this raises."""
    from core.evaluation.audit.answers import Measured
    from core.evaluation.audit.shrink import Budget, shrink

    source = with_profile(order.source, order.profile, order.task_id)
    shrunk = shrink(source, order.task_id, Budget().times(order.share * factor), avoid)
    answer.scaled, answer.doubt = shrunk.scaled, shrunk.doubt
    found = Measured(shrunk.source, order.task_id)
    answer.margins, answer.training, answer.outputs = found.margins, found.training, found.outputs
    answer.own = found.own
    answer.notes = found.notes + ((shrunk.note,) if shrunk.note else ())


def main() -> int:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what tasks print must not be read as answers
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    import core.evaluation.audit.answers  # noqa: F401
    from core.evaluation import meta_operators
    from core.evaluation.audit.shrink import Budget, measure

    meta_operators.need_no_compiler()
    # The first operation on the meta device imports for seconds: once here, not in every child.
    measure(WARM_UP, "warm-up", Budget())
    for line in sys.stdin.buffer:
        answers.write(msgspec.json.encode(audit(msgspec.json.decode(line, type=Order))) + b"\n")
        answers.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
