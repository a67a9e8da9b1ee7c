"""Whatever a candidate does to its process, there is a verdict, the judge goes on, and nothing is left behind."""
# ruff: noqa: E501

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from core.evaluation import sandbox
from core.evaluation.judge import Judge
from core.evaluation.settings import JudgeSettings
from core.evaluation.verdict import Verdict
from core.tasks.task import Task

Ask = Callable[[str], Verdict]
Variant = Callable[..., str]


def _processes() -> set[int]:
    return {int(name) for name in os.listdir("/proc") if name.isdigit() and _descends(int(name))}


def _descends(pid: int) -> bool:
    """Whether a process comes from this one."""
    while pid > 1:
        if pid == os.getpid():
            return True
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return False
    return False


@pytest.fixture(autouse=True)
def nothing_left(judge: Judge) -> Iterator[None]:
    folder = Path(tempfile.gettempdir())
    before = _processes(), set(folder.glob("kernelmill-*"))
    yield
    assert _processes() <= before[0]
    assert set(folder.glob("kernelmill-*")) <= before[1]


def _still_healthy(ask: Ask, variant: Variant) -> None:
    assert ask(variant()).kind == "pass"


LOOP = "while True: pass"
CASES = {
    "endless_import": ({"top": LOOP}, "timeout"),
    "endless_init": ({"init": LOOP}, "timeout"),
    "endless_forward": ({"before": LOOP}, "timeout"),
    "endless_kernel": ({"body": "while n > 0: offsets += 1"}, "timeout"),
    "sleeps": ({"before": "__import__('time').sleep(1000)"}, "timeout"),
    "exit_0": ({"before": "__import__('os')._exit(0)"}, "crash"),
    "exit_like_a_broken_sandbox": ({"before": "__import__('os')._exit(71)"}, "crash"),
    "forged_frame": (
        {"before": r"__import__('os').write(4, (200003).to_bytes(4, 'little') + b'\x81\xa1a' + b'\x91' * 200000)"},
        "tampering",
    ),
    "own_unsupported_error": (
        {"top": "bfloat16 = 1\nclass UnsupportedError(Exception): pass", "before": "raise UnsupportedError('please')"},
        "runtime_error",
    ),
    "message_that_raises": (
        {"top": "class Odd(Exception):\n    def __str__(self): raise ValueError", "before": "raise Odd()"},
        "runtime_error",
    ),
    "sys_exit": ({"top": "raise SystemExit(0)"}, "import_error"),
    "segfault": ({"before": "__import__('ctypes').string_at(0)"}, "crash"),
    "abort": ({"before": "__import__('os').abort()"}, "crash"),
    "huge_tensor": ({"before": "torch.empty(25_000_000_000)"}, "memory"),
    "huge_bytes": ({"before": "bytearray(100 * 2**30)"}, "memory"),
    "many_small": ({"before": "self.kept = [bytes(2**20) for _ in range(100_000)]"}, "memory"),
    "deep_recursion": ({"before": "(f := lambda: f())()"}, "runtime_error"),
    "bottomless_recursion": (
        {"before": "__import__('sys').setrecursionlimit(10**9); (f := lambda a: [f(a)])([])"},
        "crash, memory, runtime_error, timeout",
    ),
    "fork_bomb": ({"before": "\n        import os\n        while True: os.fork()"}, "runtime_error"),
    "thread_bomb": (
        {
            "before": "\n        import threading, time"
            "\n        while True: threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()"
        },
        "runtime_error, memory",
    ),
    "full_disk": ({"before": "open('/tmp/x', 'wb').write(bytes(2**28))"}, "runtime_error, crash"),
    "many_files": ({"before": "[open(f'/tmp/{i}', 'w').close() for i in range(10**6)]"}, "runtime_error"),
    "write_outside": ({"before": "open('/usr/x', 'w')"}, "runtime_error"),
    "deletes_its_folder": ({"top": "import shutil; shutil.rmtree('/tmp', ignore_errors=True); raise KeyError('gone')"}, "import_error"),
    "kills_its_group": ({"before": "__import__('os').kill(-1, 9)"}, "runtime_error, crash, memory"),
    "network": ({"before": "__import__('socket').create_connection(('127.0.0.1', 80))"}, "runtime_error"),
    "process": ({"before": "__import__('subprocess').run(['true'])"}, "runtime_error"),
    "ptrace": ({"before": "assert __import__('ctypes').CDLL(None).ptrace(0, 0, 0, 0) == 0"}, "runtime_error"),
    "new_namespace": ({"before": "assert __import__('ctypes').CDLL(None).unshare(0x10000000) == 0"}, "runtime_error"),
    "stack_of_decorators": ({"top": "x = " + "(" * 300 + ")" * 300}, "syntax_error"),
    "null_bytes": ({"top": "x = '\0'"}, "syntax_error"),
    "ten_megabytes": ({"top": "#" * 10_000_000}, "too_large"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_bad_behaviour_has_a_verdict(verdict_of: Ask, variant: Variant, name: str) -> None:
    places, categories = CASES[name]
    verdict = verdict_of(variant(**places))
    assert verdict.kind == "fail"
    assert verdict.category in categories.split(", "), verdict.feedback
    assert verdict.wall_s < 8
    _still_healthy(verdict_of, variant)


def test_a_gigabyte_of_output_is_cut_off(verdict_of: Ask, variant: Variant) -> None:
    verdict = verdict_of(variant(before="[print('x' * 2**20) for _ in range(1024)]"))
    assert (verdict.kind, verdict.category) == ("fail", "output_limit")
    _still_healthy(verdict_of, variant)


def test_some_output_does_no_harm(verdict_of: Ask, variant: Variant) -> None:
    assert verdict_of(variant(before="print('x' * 2**20)")).kind == "pass"


def test_endless_output_is_a_verdict(verdict_of: Ask, variant: Variant) -> None:
    verdict = verdict_of(variant(top="while True: print('x' * 2**20)"))
    assert verdict.category == "output_limit"


def test_the_child_sees_neither_secrets_nor_the_machine(verdict_of: Ask, variant: Variant) -> None:
    os.environ["KERNELMILL_TEST_TOKEN"] = "secret"
    look = """
        import os
        found = []
        found += [name for name in os.environ if "TOKEN" in name]
        found += [path for path in ("/proc/self", "/home", "/etc/passwd", "/var", "/sys/kernel") if os.path.exists(path)]
        found += [fd for fd in range(3, 300) if fd not in (3, 4) and _open(fd)]
        assert not found, found"""
    top = "import os\ndef _open(fd):\n    try:\n        os.fstat(fd)\n        return True\n    except OSError:\n        return False"
    if sandbox.probe().level != "namespaces":
        pytest.skip("only namespaces hide the file system")
    verdict = verdict_of(variant(top=top, before=look))
    assert verdict.kind == "pass", verdict.feedback


def test_siblings_share_no_files(verdict_of: Ask, variant: Variant) -> None:
    assert verdict_of(variant(before="open('/tmp/left', 'w').write('x')")).kind in ("pass", "fail")
    verdict = verdict_of(variant(before="import os; assert not os.path.exists('/tmp/left')"))
    assert verdict.kind == "pass", verdict.feedback


@pytest.fixture(scope="module")
def basic() -> Iterator[Judge]:
    one = Judge(JudgeSettings(wall_s=2.0, memory_mb=1024, isolation="basic"), slot=92)
    one.start()
    one.wait_ready()
    yield one
    one.stop()


@pytest.mark.parametrize("name", ["endless_forward", "exit_0", "fork_bomb", "huge_tensor", "write_outside", "network"])
def test_without_namespaces(basic: Judge, task: Task, variant: Variant, name: str) -> None:
    places, categories = CASES[name]
    verdict = basic.judge(task, variant(**places), "key")
    assert verdict.category in categories.split(", "), verdict.feedback
    assert basic.judge(task, variant(), "key").kind == "pass"


def test_without_namespaces_landlock_hides_the_repository(basic: Judge, task: Task, variant: Variant) -> None:
    if not basic.walls.landlock_abi:
        pytest.skip("this kernel has no Landlock")
    verdict = basic.judge(task, variant(before=f"open({__file__!r}).read()"), "key")
    assert verdict.category == "runtime_error" and "Permission" in verdict.feedback, verdict.feedback


def test_a_killed_owner_takes_everything_along(tmp_path: Path) -> None:
    script = (
        "import os\n"
        "from core.evaluation.judge import Judge\n"
        "from core.evaluation.settings import JudgeSettings\n"
        "judge = Judge(JudgeSettings(), slot=93)\n"
        "judge.start()\n"
        "print(judge._zygote._process.pid, flush=True)\n"
        "judge.wait_ready()\n"
        "os.kill(os.getpid(), 9)\n"
    )
    root = str(Path(__file__).parents[3])
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, timeout=100)
    assert done.returncode == -9, done.stderr
    zygote = int(done.stdout)
    for _ in range(10**6):
        if not os.path.exists(f"/proc/{zygote}"):
            break
    state = Path(f"/proc/{zygote}/stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"
