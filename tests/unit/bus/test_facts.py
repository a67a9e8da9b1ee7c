"""What `bus.facts` says of each fact is what is published: every call in the code, and the facts of a run."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

from bus import facts
from core.flow.heldout_rounds import HeldOutRounds

ROOT = Path(__file__).parents[3]
HOUSE = ("actors", "bus", "core", "runners")
OPTIONAL = re.compile(r"\[(\w+)\]")


def documented():
    """Kind -> (fields that each has, fields that some have)."""
    found, kind = {}, ""
    for line in facts.__doc__.splitlines():
        entry = re.match(r"    (\w+) +(?:every actor|[a-z]+(?:, [a-z]+)*?) {2,}(\S.*)$", line)
        if entry:
            kind = entry[1]
            found[kind] = entry[2]
        elif kind and line.startswith(" " * 8):
            found[kind] += " " + line.strip()
    told = {}
    for kind, text in found.items():
        text = re.sub(r"\([^()]*\)", "", text)
        text = re.split(r"[:;]", text)[0]
        optional = set(OPTIONAL.findall(text))
        told[kind] = set(re.findall(r"\w+", OPTIONAL.sub("", text))), optional
    return told


def published():
    """Kind -> (where, fields) of each call; "**" among the fields where they are made elsewhere."""
    calls = defaultdict(list)
    for path in (path for folder in HOUSE for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "fact"):
                continue
            if ast.unparse(node.func.value) == "subjects":
                continue
            kind = node.args[0]
            assert isinstance(kind, ast.Attribute), f"{path}:{node.lineno} names no kind of bus.facts"
            fields = {keyword.arg or "**" for keyword in node.keywords} - {"trace"}
            calls[getattr(facts, kind.attr)].append((f"{path.relative_to(ROOT)}:{node.lineno}", fields))
    return calls


def test_each_kind_is_documented_and_published():
    assert set(documented()) == set(facts.ALL) == set(published())


@pytest.mark.parametrize("kind", facts.ALL)
def test_the_fields_of_a_fact_are_those_that_are_documented(kind):
    always, sometimes = documented()[kind]
    for where, fields in published()[kind]:
        if "**" in fields:
            assert kind == facts.EVALUATED, f"{where}: say in this test what its fields are"
            rounds = HeldOutRounds("run", ["t"], every_steps=1, total_steps=9, in_flight=1)
            rounds.begin(1)
            fields = set(rounds.result(3))
        assert always <= fields <= always | sometimes, f"{where}: {kind} has {sorted(fields)}, told: {sorted(always)}"
