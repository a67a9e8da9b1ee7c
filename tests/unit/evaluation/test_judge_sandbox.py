"""What candidates see of the machine and of each other, and what is left when a part of the judge is killed."""

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from shared_judges import Judges
from test_hostile import added, descendants, folders, shared

from core.evaluation.judge import Judge
from core.evaluation.verdict import Verdict
from core.evaluation.walls import sandbox
from core.tasks.task import Task

Ask = Callable[[str], Verdict]
Variant = Callable[..., str]
ROOT = str(Path(__file__).parents[3])
LOOP = "while True: pass"
WRITES = """
import os, sys, tempfile
MARK = "sibling-was-here"
PLACES = {os.getcwd(), tempfile.gettempdir(), os.path.dirname(__file__), "/", "/tmp", "/var/tmp", "/dev/shm", "/dev",
          "/run", "/scratch", "/root", "/home", "/nonexistent", sys.prefix, *sys.path}
PLACES |= {os.environ[name] for name in os.environ if os.path.isabs(os.environ[name])}
PLACES |= {os.path.join(place, name) for place in list(PLACES) for name in (".triton", ".cache", "__pycache__")}
def write():
    for place in PLACES:
        try:
            with open(os.path.join(place, MARK), "w") as file:
                file.write(MARK)
        except OSError:
            pass
"""
LOOKS = """
    for place in PLACES | {os.path.dirname(place) for place in PLACES}:
        try:
            names = os.listdir(place)
        except OSError:
            continue
        assert MARK not in names, place
        assert not [name for name in names if name.startswith("kernelmill-judge-")], place"""


def _writer(variant: Variant, then: str = "") -> str:
    return variant(top=WRITES, before="write()", after=then)


def _reader(variant: Variant) -> str:
    return variant(top=WRITES + "def look():" + LOOKS, before="look()")


def test_the_child_sees_neither_secrets_nor_the_machine(
    verdict_of: Ask, variant: Variant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELMILL_TEST_TOKEN", "secret")
    look = """
        import os
        found = []
        found += [name for name in os.environ if "TOKEN" in name]
        paths = ("/proc/self", "/home", "/etc/passwd", "/var", "/sys/kernel", KEYS, "/run")
        found += [path for path in paths if os.path.exists(path)]
        found += [f"descriptor {fd}" for fd in range(3, 300) if _open(fd)]
        assert len(found) == 1, found
        link = int(found[0].split()[1])
        assert stat.S_ISSOCK(os.fstat(link).st_mode), found"""
    look = look.replace("KEYS", repr(os.path.join(os.path.expanduser("~root"), ".ssh")))  # as this side knows it
    top = """
import os, stat
def _open(fd):
    try:
        os.fstat(fd)
        return True
    except OSError:
        return False"""
    if sandbox.probe().level != "namespaces":
        pytest.skip("only namespaces hide the file system")
    verdict = verdict_of(variant(top=top, before=look))
    assert verdict.kind == "pass", verdict.feedback


def test_the_next_child_sees_nothing_of_the_last(judge: Judge, basic: Judge, task: Task, variant: Variant) -> None:
    for one in (judge, basic):
        assert one.judge(task, _writer(variant), "key").kind == "pass"
        verdict = one.judge(task, _reader(variant), "key")
        assert verdict.kind == "pass", verdict.feedback


@pytest.mark.parametrize("pair", ["basic and basic", "basic and namespaces", "namespaces and basic"])
def test_simultaneous_children_see_nothing_of_each_other(
    judge: Judge, basic: Judge, sibling: Judge, task: Task, variant: Variant, pair: str
) -> None:
    writer, reader = {
        "basic and basic": (basic, sibling),
        "basic and namespaces": (basic, judge),
        "namespaces and basic": (judge, basic),
    }[pair]
    stays = _writer(
        variant, "\n        import time\n        end = time.time() + 0.5\n        while time.time() < end: write()"
    )
    verdicts: list[Verdict] = []
    thread = threading.Thread(target=lambda: verdicts.append(writer.judge(task, stays, "key")))
    thread.start()
    while thread.is_alive():
        verdict = reader.judge(task, _reader(variant), "key")
        assert verdict.kind == "pass", verdict.feedback
    thread.join()
    assert verdicts[0].kind == "pass" or verdicts[0].category == "timeout", verdicts[0].feedback


def test_each_zygote_has_users_of_its_own(judge: Judge, basic: Judge, sibling: Judge) -> None:
    slots = [one._zygote.slot for one in (judge, basic, sibling) if one.walls.own_uid]
    assert len(set(slots)) == len(slots)


def test_without_namespaces_landlock_hides_the_repository(basic: Judge, task: Task, variant: Variant) -> None:
    if not basic.walls.landlock_abi:
        pytest.skip("this kernel has no Landlock")
    for path in (__file__, "/etc/passwd", "/proc/self/status"):
        verdict = basic.judge(task, variant(before=f"open({path!r}).read()"), "key")
        assert verdict.category == "runtime_error" and "Permission" in verdict.feedback, verdict.feedback


def _ended(pids: set[int], within_s: float = 30.0) -> set[int]:
    """Those of `pids` that still live after that time."""
    end = time.monotonic() + within_s
    while (left := {pid for pid in pids if _lives(pid)}) and time.monotonic() < end:
        select.select([], [], [], 0.02)
    return left


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


LIVES = """
import os, sys, threading
from core.evaluation.judge import Judge
from core.evaluation.settings import JudgeSettings
sys.path.insert(0, "tests/unit/evaluation")
from right_answer import TASK, candidate
judges = [Judge(JudgeSettings(isolation=level, wall_s=300.0), slot=93) for level in ("auto", "basic")]
for judge in judges:
    judge.start()
for judge in judges:
    judge.wait_ready()
print("ready", flush=True)
sys.stdin.readline()
source = candidate(before="while True: pass")
threads = [threading.Thread(target=judge.judge, args=(TASK, source, "key")) for judge in judges]
for thread in threads:
    thread.start()
"""


def _children(of: int, idle: set[int], count: int) -> set[int]:
    """The processes of candidates that run now below a process; waits until there are `count`."""
    end = time.monotonic() + 60
    while len(found := descendants(of) - idle) < count and time.monotonic() < end:
        select.select([], [], [], 0.02)
    assert len(found) >= count, "the candidate did not start"
    return found


@pytest.fixture(scope="module")
def owner() -> Iterator[subprocess.Popen[str]]:
    """A process with two judges that judge endless candidates. It starts while other tests run."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", LIVES], cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        yield process
        process.kill()


@pytest.fixture(scope="module", autouse=True)
def _owner_starts(owner: subprocess.Popen[str]) -> None: ...


@pytest.mark.parametrize("level", ["judge", "basic"])
def test_a_killed_zygote_takes_its_child_along_and_is_replaced(
    judges: Judges, task: Task, variant: Variant, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = judges[level]
    monkeypatch.setattr(one, "settings", msgspec.structs.replace(one.settings, wall_s=2.0))
    if one.walls.level == "namespaces":  # the strong level needs no temporary folder
        monkeypatch.setattr(tempfile, "tempdir", "/missing")
    zygote = one._zygote._process
    assert zygote is not None
    idle = descendants(zygote.pid)
    ended: list[bool] = []

    def kill() -> None:
        children = _children(zygote.pid, idle, 2)
        os.kill(zygote.pid, signal.SIGKILL)
        ended.append(not _ended({zygote.pid, *children}))

    thread = threading.Thread(target=kill)
    thread.start()
    verdict = one.judge(task, variant(before=LOOP), "key")
    thread.join()
    assert ended == [True]
    assert verdict.category == "timeout", verdict.feedback
    assert one._zygote._process is not zygote
    assert one.judge(task, variant(), "key").kind == "pass"


def test_without_a_temporary_folder_it_is_our_trouble(
    sibling: Judge, task: Task, variant: Variant, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shutil.rmtree(sibling._zygote._outer)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    verdict = sibling.judge(task, variant(), "key")
    assert verdict.kind == "infra" and "TMPDIR" in verdict.feedback, verdict.feedback
    monkeypatch.undo()
    assert sibling.judge(task, variant(), "key").kind == "pass"


def test_a_killed_owner_takes_everything_along(owner: subprocess.Popen[str]) -> None:
    memory = shared()
    assert owner.stdin is not None and owner.stdout is not None and owner.stdout.readline() == "ready\n"
    idle = descendants(owner.pid)
    owner.stdin.write("\n")
    owner.stdin.flush()
    everything = _children(owner.pid, idle, 4) | idle  # an executor and a host of each judge
    owner.kill()
    assert not _ended(everything)
    owner.wait()
    assert not folders(f"kernelmill-judge-{owner.pid}-*") and added(memory) == (set(), False)
