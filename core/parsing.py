"""Python source to AST, from any thread.

CPython 3.11 counts the depth of `ast.parse` in one place for all threads of a process: when the collector lets another
thread parse in between, one of the two ends in SystemError (3.12 counts for each call). So ours wait for each other,
and what a library's thread disturbs is parsed again.
"""

import ast
import os
import threading

TRIES = 8
_one_at_a_time = threading.Lock()
os.register_at_fork(after_in_child=_one_at_a_time._at_fork_reinit)  # type: ignore[attr-defined]


def parse(source: str) -> ast.Module:
    """As `ast.parse`. Raises SyntaxError, ValueError, RecursionError, MemoryError."""
    for left in reversed(range(TRIES)):
        try:
            with _one_at_a_time:
                return ast.parse(source)
        except SystemError:
            if not left:
                raise
    raise AssertionError
