"""Races that the serial grid would hide, accesses out of bounds, and launches that are recalled instead of run."""

from collections.abc import Callable
from typing import Any

import pytest
import workbench

HEAD = """
def kernel(x_ptr, out_ptr, BLOCK):
    pid = tl.program_id(0)
    i = pid * BLOCK + tl.arange(0, BLOCK)
"""
RACES = {
    "reads what another program wrote": (
        "tl.store(out_ptr + i, 1.0)\ny = tl.load(out_ptr + (pid - 1) * BLOCK + tl.arange(0, BLOCK), mask=pid > 0)",
        "program 1: tl.load reads out_ptr[0], which is stored by program 0",
    ),
    "writes what another program read": (
        "y = tl.load(x_ptr + i + BLOCK, mask=i + BLOCK < 32, other=0.0)\ntl.store(x_ptr + i, y + 1.0)",
        "program 1: tl.store writes x_ptr[8], which is loaded by program 0",
    ),
    "writes what another program wrote": (
        "tl.store(out_ptr + tl.arange(0, BLOCK), pid * 1.0)",
        "program 1: tl.store writes out_ptr[0], which is stored by program 0",
    ),
    "adds without an atomic": (
        "tl.store(out_ptr, tl.load(out_ptr) + tl.sum(tl.load(x_ptr + i)))",
        "program 1: tl.load reads out_ptr[0], which is stored by program 0",
    ),
    "lanes that write to one place": (
        "tl.store(out_ptr + pid * BLOCK + tl.arange(0, BLOCK) // 2, tl.load(x_ptr + i))",
        "tl.store writes several values to out_ptr[0] at once, from different lanes",
    ),
    "lanes out of order": (
        "j = tl.arange(0, BLOCK)\ntl.store(out_ptr + pid * BLOCK + (j * 3) % 4, tl.load(x_ptr + i), mask=j > 2)",
        "tl.store writes several values to out_ptr[",
    ),
}
NO_RACES = {
    "each its own": "tl.store(out_ptr + i, tl.load(x_ptr + i) * 2.0)",
    "in place": "tl.store(x_ptr + i, tl.load(x_ptr + i) * 2.0)",
    "its own again": "tl.store(out_ptr + i, 1.0)\ntl.store(out_ptr + i, tl.load(out_ptr + i) + 1.0)",
    "all read, none writes": "y = tl.load(x_ptr + tl.arange(0, BLOCK))\ntl.store(out_ptr + i, y)",
    "equal values of lanes": "tl.store(out_ptr + pid + i * 0, pid + 0.0 * tl.load(x_ptr + i))",
    "lanes in another order": "tl.store(out_ptr + pid * BLOCK + BLOCK - 1 - tl.arange(0, BLOCK), tl.load(x_ptr + i))",
    "lanes that are masked off": "tl.store(out_ptr + i // 2 * 2, tl.load(x_ptr + i), mask=i % 2 == 1)",
    "equal values": "tl.store(out_ptr + tl.arange(0, BLOCK), 7.0)",
    "atomics": "tl.atomic_add(out_ptr, tl.sum(tl.load(x_ptr + i)))",
    "reads after an atomic": "done = tl.atomic_add(out_ptr + 31, 1.0)\nif done == 3.0:\n    tl.store(out_ptr, tl.load(out_ptr) + 1.0)",
    "masked off": "tl.store(out_ptr + tl.arange(0, BLOCK), pid * 1.0, mask=pid == 2)",
}


def _kernel(body: str) -> str:
    return HEAD + "".join(f"    {line}\n" for line in body.split("\n"))


def _launch(bench: Callable[..., Any], body: str, outs: int = 32) -> tuple[str, dict[str, list[float]]]:
    arguments = {"x_ptr": [float(i) for i in range(32)], "out_ptr": [0.0] * outs, "BLOCK": 8}
    return bench(workbench.launch, _kernel(body), 4, arguments)


@pytest.mark.parametrize("name", RACES)
def test_an_order_that_a_gpu_does_not_keep_is_a_race(bench: Callable[..., Any], name: str) -> None:
    body, words = RACES[name]
    error, _ = _launch(bench, body)
    assert error.startswith("RaceError: ") and words in error


@pytest.mark.parametrize("name", NO_RACES)
def test_what_no_order_changes_is_none(bench: Callable[..., Any], name: str) -> None:
    assert _launch(bench, NO_RACES[name])[0] == ""


def test_atomics_add_up(bench: Callable[..., Any]) -> None:
    _, after = _launch(bench, NO_RACES["atomics"])
    assert after["out_ptr"][0] == sum(range(32))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("tl.store(out_ptr + i + 1, 1.0)", "tl.store writes out_ptr[32] but out_ptr has 32 elements (program 3)"),
        ("y = tl.load(x_ptr + i - 1)", "tl.load reads x_ptr[-1] but x_ptr has 32 elements (program 0)"),
        ("y = tl.load(x_ptr + i + 10**9)", "tl.load reads x_ptr[1000000007] but x_ptr has 32"),
        (
            "y = tl.load((pid + 64).to(tl.int64).to(tl.pointer_type(tl.float32), bitcast=True))",
            "a pointer that belongs to no tensor",
        ),
        ("tl.atomic_add(out_ptr + 32, 1.0)", "tl.store writes out_ptr[32]"),
    ],
)
def test_accesses_stay_in_the_pointers_own_tensor(bench: Callable[..., Any], body: str, words: str) -> None:
    error, _ = _launch(bench, body)
    assert error.startswith("OutOfBoundsError: ") and words in error


def test_what_is_recalled_is_what_would_be_stored(bench: Callable[..., Any]) -> None:
    one, two = [float(i) for i in range(32)], [float(i % 5) for i in range(32)]
    calls = [
        {"x_ptr": one, "out_ptr": [0.0] * 32},
        {"x_ptr": two, "out_ptr": [0.0] * 32},
        {"x_ptr": one, "out_ptr": [0.0] * 32},
        {"x_ptr": one, "out_ptr": [9.0] * 32},  # other bytes where nothing is stored: another launch
        {"x_ptr": one, "out_ptr": [0.0] * 33},
        {"x_ptr": two, "out_ptr": [0.0] * 32},
    ]
    body = "tl.store(out_ptr + i, tl.load(x_ptr + i) * 2.0, mask=i % 3 == 0)\ntl.atomic_add(out_ptr + 1, 1.0)"
    source = _kernel(body).replace("out_ptr, BLOCK)", "out_ptr)").replace("BLOCK", "8")
    found = bench(workbench.remembered, source, 4, calls)
    assert [recalled for recalled, _, _ in found] == [False, False, True, False, False, True]
    for _, got, wanted in found:
        assert got == wanted
    assert found[0][1][1][3] == 6.0 and found[3][1][1][2] == 9.0
