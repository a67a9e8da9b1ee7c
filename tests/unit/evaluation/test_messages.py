"""Compilers' messages as they are printed, and what is left of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.evaluation.messages import trim_compiler_message

TRITON = """at 4:8:
def a(x_ptr, o_ptr, n, B: tl.constexpr):
    o = tl.program_id(0)*B + tl.arange(0, B)
    y = helper(x, B)
        ^
at 2:11:
def helper(x, N: tl.constexpr):
    return tl.reshape(x, [N, 3])
           ^
Shape element 1 must be a power of 2"""
NVCC = """\x1b[1m/home/ab/main.cu(12): error: identifier "foo" is undefined\x1b[0m
    foo(x);
    ^

/home/x/y/main.cu(14): warning #177-D: variable "z" was declared but never referenced

/home/x/y/main.cu(15): error: expected a ";"

2 errors detected in the compilation of "/home/x/y/main.cu".
ninja: build stopped: subcommand failed."""
SHARED = """ptxas error   : Entry function 'k' uses too much shared data (0x40000 bytes, 0x38c00 max)
ptxas fatal   : Ptx assembly aborted due to errors"""
LINK = """/usr/bin/ld: main.o: in function `run':
main.cpp:(.text+0x1): undefined reference to `bar()'
collect2: error: ld returned 1 exit status"""


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (TRITON, "2:11: return tl.reshape(x, [N, 3]): Shape element 1 must be a power of 2"),
        (
            "at 3:4:\ndef c(x):\n    tl.foo(x)\n    ^\n"
            "AttributeError(\"module 'triton.language' has no attribute 'foo'\")",
            "3:4: tl.foo(x): AttributeError: tl has no attribute 'foo'",
        ),
        (SHARED, "k uses too much shared data (262,144 bytes, 232,448 max)"),
        (LINK, "undefined reference to `bar()'"),
        ("/a/b/main.cpp:5:10: fatal error: foo.h: No such file", "main.cpp:5:10: foo.h: No such file"),
        ("ImportError: /t/k.so: undefined symbol: _Z3barv", "undefined symbol: _Z3barv"),
        ("nothing\n known", "nothing known"),
    ],
)
def test_what_is_kept(text: str, wanted: str) -> None:
    assert wanted in trim_compiler_message(text, 300)


def test_errors_once_and_no_warnings() -> None:
    text = trim_compiler_message(NVCC + "\n" + NVCC, 300)
    assert text.count('identifier "foo" is undefined') == 1
    assert text.endswith('main.cu(15): expected a ";"') and "warning" not in text and "home" not in text


@given(st.text(max_size=500), st.integers(1, 300))
def test_the_limit_holds_for_any_text(text: str, limit: int) -> None:
    trimmed = trim_compiler_message(text, limit)
    assert len(trimmed) <= limit and "\n" not in trimmed


@given(st.lists(st.sampled_from((TRITON + NVCC + SHARED + LINK).split("\n")), max_size=12), st.integers(20, 200))
def test_the_limit_holds_for_lines_of_messages(lines: list[str], limit: int) -> None:
    assert len(trim_compiler_message("\n".join(lines), limit)) <= limit
