"""The corpus itself: every file says what it is, and no hack of the catalogue that this tier can see is missing.

Ids are those of the reward-hack catalogue: A memory and reference stealing, B fallback instead of custom work, C output
exploitation, D timing, E caching and replay, F harness and result channel, G specification. Those that need a GPU or a
compiled library (A5, A9, B13, D1, D6 to D8, D11 to D13) have no file here. C10 is seen on this tier only as a race.
"""

import ast
import re
from pathlib import Path

import pytest

from core.evaluation.categories import CATEGORIES
from core.evaluation.screens import screen

HERE = Path(__file__).parent
ON_THE_CPU_TIER = """
A1 A2 A3 A6 A7 A8 B1 B2 B4 B5 B6 B7 B8 B10 B11 B12 C1 C2 C3 C4 C5 C6 C8 C9 C11 C12 D2 D3 D4 D5 D10 D15 D17
E1 E4 E5 E6 F1 F2 F4 F5 F6 F7 F9 F10 F11 F12 G1 G2 G4
"""
REFUSED = sorted((HERE / "refused").glob("*.py"))
HONEST = sorted((HERE / "honest").glob("*.py"))


def _fields(path: Path) -> dict[str, str]:
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    return dict(re.findall(r"^(id|tier|task|expect): (.+)$", docstring, re.MULTILINE))


def test_every_hack_of_the_catalogue_has_a_file() -> None:
    there = {_fields(path)["id"] for path in REFUSED}
    assert not set(ON_THE_CPU_TIER.split()) - there


def test_the_corpus_is_large_enough_on_both_sides() -> None:
    assert len(REFUSED) >= 110
    assert len(HONEST) >= 45


@pytest.mark.parametrize("path", REFUSED + HONEST, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_file_says_what_it_is(path: Path) -> None:
    fields = _fields(path)
    assert fields.keys() >= {"tier", "task", "expect"}
    assert (HERE / "tasks" / f"{fields['task']}.py").exists()
    refusal, _ = screen(path.read_text())
    if path.parent.name == "refused":
        assert path.stem.split("_")[0].upper() == fields["id"]
        assert not set(fields["expect"].split(", ")) - CATEGORIES.keys()
    else:
        assert fields["expect"] == "pass"
        assert refusal is None
