"""docs/switching.md: every setting of ours that it names exists, and every row's values load together."""

import re
import tomllib
from pathlib import Path

import pytest
from pydantic import BaseModel

from configs.load import load
from configs.schema import RunConfig
from runners.cli import COMMANDS, parser

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "switching.md"
SPAN = re.compile(r"`([^`]+)`")
SECTIONS = "|".join(RunConfig.model_fields)
NAME = re.compile(rf"^((?:{SECTIONS})(?:\.[a-z_]+)+)(?: = (.+))?$")


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def rows():
    """(column "here", the column after it) of every row of every table."""
    found, here = [], None
    for line in PAGE.read_text().splitlines():
        if not line.startswith("|"):
            here = None
        elif here is None:
            here = cells(line).index("here")
        elif set(line) - set("|- "):
            assert len(cells(line)) == here + 2, line
            found.append((cells(line)[here], cells(line)[here + 1]))
    return found


def prose():
    return "\n".join(line for line in PAGE.read_text().splitlines() if not line.startswith("|"))


def named(text):
    """(name, value or None) of every setting of ours in backticks; a nested list's brackets stay with the value."""
    return [match.groups() for span in SPAN.findall(text) if (match := NAME.match(span))]


def exists(name):
    kind = RunConfig
    for key in name.split("."):
        if not issubclass(kind, BaseModel) or key not in kind.model_fields:
            return False
        inner = kind.model_fields[key].annotation
        kind = inner if isinstance(inner, type) else object
    return True


def defaults():
    """(name, value) of every setting of ours with a value in brackets after it."""
    text = "\n".join(cell for row in rows() for cell in row)
    return [m.groups() for m in re.finditer(r"`([a-z_.]+)` \(([^()]+)\)", text) if NAME.match(m[1])]


def overrides(text):
    return [f"{name}={value}" for name, value in named(text) if value is not None]


def test_the_page_has_rows_and_stays_short():
    assert len(rows()) > 80
    assert len(PAGE.read_text().splitlines()) <= 180


@pytest.mark.parametrize("here", [here for here, _ in rows()])
def test_the_column_here_holds_settings_and_commands_alone(here):
    spans = SPAN.findall(here)
    for span in spans:
        if span.startswith("kernelmill "):
            assert span.split()[1] in {"run", *COMMANDS}
        else:
            assert NAME.match(span), f"{span!r} is no setting of ours"
    assert spans or here in ("–", "501, 503", "that server's URL")


def test_every_setting_that_the_page_names_is_one():
    text = "\n".join([prose(), *(cell for row in rows() for cell in row)])
    assert len(named(text)) > 150
    assert not [name for name, _ in named(text) if not exists(name)]


@pytest.mark.parametrize("here", [here for here, _ in rows() if overrides(here)])
def test_the_values_of_a_row_load_together(tmp_path, here):
    path = tmp_path / "row.toml"
    path.write_text('[model]\npath = "p"\n')
    load(path, overrides(here))


def test_the_values_to_begin_with_load_on_the_row_of_grpo(tmp_path):
    grpo = next(here for here, _ in rows() if '"trajectory"' in here and 'scale = "group"' in here)
    begin = prose().split("## To begin as there")[1]
    path = tmp_path / "grpo.toml"
    path.write_text('[model]\npath = "p"\n')
    config = load(path, [*overrides(grpo), *overrides(begin)])
    assert (config.learner.corrections, config.learner.dual_clip, config.sampler.max_staleness) == ((), 3.0, 1)


def test_the_values_in_brackets_are_the_defaults():
    whole = RunConfig.model_validate({"model": {"path": "p"}})
    assert len(defaults()) > 30
    for name, value in defaults():
        field = whole
        for key in name.split("."):
            field = getattr(field, key)
        wanted = tomllib.loads(f"v = {value}")["v"]
        assert (list(field) if isinstance(field, tuple) else field) == wanted, name


@pytest.mark.parametrize(("name", "there"), [("learner.lr", True), ("rollout.vllm.eager", True), ("rollout.n", False)])
def test_the_check_tells_names_from_others(name, there):
    assert exists(name) == there


def test_the_commands_of_the_page_are_parsed():
    words = [span.split() for span in SPAN.findall(PAGE.read_text()) if span.startswith("kernelmill ")]
    known = next(a for a in parser()._actions if a.dest == "command").choices
    assert {w[1] for w in words} and all(w[1] in known for w in words)
