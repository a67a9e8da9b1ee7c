"""Sources are parsed from several threads of one process, in each Python."""

import ast
import sys
import threading
from pathlib import Path

import pytest

from core import parsing

ROOT = Path(__file__).parents[3]


class _Loop:
    """Only the collector ends it, and that runs Python, so another thread may go on in the middle of a parse."""

    def __init__(self):
        self.me = self

    def __del__(self):
        sum(range(200))


@pytest.fixture
def hasty():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_threads_may_parse_at_once(hasty):
    source, failed = Path(ast.__file__).read_text()[:20_000].rpartition("\n\n\n")[0], []
    expected = ast.dump(ast.parse(source))

    def work():
        for _ in range(15):
            [_Loop() for _ in range(20)]
            try:
                assert ast.dump(parsing.parse(source)) == expected
            except BaseException as error:
                failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_a_librarys_thread_that_parses_is_got_over(monkeypatch):
    real, times = ast.parse, iter(range(100))

    def disturbed(source):
        if next(times) < 3:
            raise SystemError("AST constructor recursion depth mismatch (before=18, after=12)")
        return real(source)

    monkeypatch.setattr(ast, "parse", disturbed)
    assert isinstance(parsing.parse("x = 1"), ast.Module)


@pytest.mark.parametrize(("source", "error"), [("x =", SyntaxError), ("x\0", (SyntaxError, ValueError))])
def test_what_is_not_python_is_said_as_ever(source, error):
    with pytest.raises(error):
        parsing.parse(source)


def test_nobody_parses_past_it():
    found = {
        f"{path.relative_to(ROOT)}:{number}"
        for room in ("core", "bus", "actors", "runners", "configs")
        for path in (ROOT / room).rglob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if "ast.parse(" in line and path != ROOT / "core/parsing.py"
    }
    assert not found
