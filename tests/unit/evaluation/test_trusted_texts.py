"""Texts of a candidate's that the trusted side reads: whatever they hold, reading takes no longer than they are long.

A regular expression that starts anew at every character and runs to the end each time holds a worker for minutes.
"""

import time

import pytest

from core.episodes.extract import candidate_of
from core.evaluation import cuda_source
from core.evaluation.compilers import compiler_text, cuda_stage, ptxas
from core.evaluation.cuda_source import Extension
from core.evaluation.gpu import work
from core.evaluation.screens import MAX_SOURCE_BYTES, screen
from core.evaluation.source_text import foreign_encoding

PIECES = [
    "\n", " ", "\t#", "/* ", "//", "/*\n", "# define\n", "#", "__global__ ", "__global__ k ", "k ", "k(", "a", "/a", "/a.cu:",
    "a.cu(1): ", "error: ", "error", "ptxas error ", "Used 1 ", "coding: ", "def a", "def a ", "class ModelNew", "class ",
    " a: constexpr = ", " a = constexpr(", "```\n", "```python\n", "~~~\n", "<think>", "</think>", "<think>\n```", '"""', "'''\n", "\\", "{", "(",
]  # fmt: skip
READERS = {
    "unlinkable": lambda text: cuda_source.unlinkable(
        Extension(name="x", cpp_sources=(text,), cuda_sources=(text,), functions=("absent",))
    ),
    "only_declares": cuda_source.only_declares,
    "line_of_kernel": lambda text: cuda_stage._line_of_kernel("k", text),
    "printed_errors": lambda text: compiler_text.printed_errors(text[: 64 * 1024]),
    "run_time_constant": lambda text: compiler_text.run_time_constant(
        "`_semantic` argument must be provided", text.count("\n") + 1, text.split("\n")
    ),
    "trim": compiler_text.trim,
    "usages": lambda text: ptxas.usages(text[: 64 * 1024]),
    "foreign_encoding": foreign_encoding,
    "screen": screen,
    "indirect": work._INDIRECT.search,
    "candidate_of": candidate_of,
}
MOST_S = 4.0


@pytest.mark.parametrize("reader", READERS)
def test_no_text_holds_its_reader(reader: str) -> None:
    slow = {}
    for piece in PIECES:
        text = piece * (MAX_SOURCE_BYTES // len(piece))
        started = time.process_time()
        READERS[reader](text)
        if (spent := time.process_time() - started) > MOST_S:
            slow[piece] = round(spent, 1)
    assert not slow


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("\n__global__ void k(int x) {}", 2),
        ("__global__ void other(int x) {}\n__global__ void __launch_bounds__(256)\nk (int x) {}", 3),
        ("void k(int x);\n__global__ void other() { k(1); }", 0),
        ("__global__ static\nvoid k(", 2),
        ("k<<<1, 1>>>(); k(1);", 0),
    ],
)
def test_a_kernel_is_found_where_it_is_defined(source: str, line: int) -> None:
    assert cuda_stage._line_of_kernel("k", source) == line


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("a /* b */ c", "a   c"), ("a // b\nc", "a  \nc"), ("a /* b", "a  "), ("/* a */ b /* c", "  b  ")],
)
def test_comments_are_blanked_and_an_open_one_goes_to_the_end(text: str, wanted: str) -> None:
    assert cuda_source.without_comments(text) == wanted
