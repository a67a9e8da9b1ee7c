"""Every field of every section, given what it can't take, in a file or an override: one line of ours, with its key."""

import re

import pytest
from pydantic import BaseModel

from configs.load import ConfigError, load, load_sft
from configs.schema import RunConfig, SftConfig

WRONG = {
    "a boolean": "true",
    "a fraction": "1.5",
    "below": "-7",
    "above": "99999999999999999999",
    "nan": "nan",
    "a word": "'purple'",
    "a list": "[]",
    "a list of words": "['x']",
    "a list of lists": "[[1]]",
    "a table": "{q = 1}",
    "a list of tables": "[{}]",
    "a list of wrong tables": "[{kind = 3, name = 3}]",
    "a date": "1979-05-27",
    "a time": "07:32:00",
}
FOREIGN = re.compile(r"Input|[Vv]alidation|Field required|Extra|[Pp]attern|instance of|parse|pydantic|dictionary|tuple")
KINDS = {"run": (RunConfig, load, "configs/demo.toml"), "sft": (SftConfig, load_sft, "configs/demo-sft.toml")}


def fields(kind, prefix=""):
    for name, field in kind.model_fields.items():
        yield prefix + name
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from fields(field.annotation, f"{prefix}{name}.")


def refusal(read, *given):
    try:
        read(*given)
    except ConfigError as error:
        return str(error)
    return None


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_field_can_not_take_is_told_in_our_words(kind, wrong):
    schema, read, recipe = KINDS[kind]
    told = {name: refusal(read, recipe, [f"{name}={WRONG[wrong]}"]) for name in fields(schema)}
    refused = {name: text for name, text in told.items() if text is not None}
    assert len(refused) > len(told) / 8, "most fields take no such thing"
    for name, text in refused.items():
        assert "\n" not in text and not FOREIGN.search(text), text
        assert text.startswith(f"{recipe}: "), text
        assert re.search(rf"\b{name.rpartition('.')[2]}\b", text), text
        what = ("unknown key", "got ", "is not set", "wanted ", " = ")  # " = ": keys that do not fit together
        assert any(part in text for part in what), text


@pytest.mark.parametrize("wrong", ["true", "'purple'", "-7"])
def test_a_file_is_told_as_an_override_is(tmp_path, wrong):
    (tmp_path / "base.toml").write_text('model.path = "m"')
    path = tmp_path / "own.toml"
    for name in fields(RunConfig):
        path.write_text(f'extends = "base.toml"\n{name} = {wrong}\n')
        if (in_file := refusal(load, path)) is not None:
            path.write_text('extends = "base.toml"')
            assert in_file == refusal(load, path, [f"{name}={wrong}"])


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("run.steps=many", "run.steps: wanted a whole number, at least 1, at most 1,000,000,000, got 'many'"),
        ("learner.device=cudaa", "wanted 'auto', 'cpu' or 'cuda', got 'cudaa'; did you mean 'cuda'?"),
        ("run.steps=1979-05-27", "at most 1,000,000,000, got 1979-05-27"),
        (f"run.steps={'x' * 500}", "got 'xxxx"),
        (f"run.steps={'9' * 300}", "got a number of more than 80 digits"),
        (f"run.steps={'9' * 5000}", "run.steps can't be read: it holds a number of too many digits"),
        (f"run.steps={'[' * 20000}", "run.steps can't be read: it is nested too deeply"),
        ("learner.betas=[0.9]", "learner.betas[1]: is not set; wanted a number, at least 0, less than 1"),
        ("learner.betas=[0.9, 2]", "learner.betas[1]: wanted a number, at least 0, less than 1, got 2"),
        ("learner.corrections=[{name='icepop', lo=1}]", "unknown key learner.corrections[0].lo; did you mean"),
        ("learner.corrections=[3]", "learner.corrections[0]: wanted a table of name, low, high, aggregate, got 3"),
        ("learner.activation_checkpointing=ful", "wanted true or false or 'none', 'selective', 'attention' or 'full'"),
        ("learner.dual_clip=0", "learner.dual_clip: wanted a number, more than 1; or leave it out, got 0"),
        ("judge=3", "judge: wanted a table of device_class, workers,"),
    ],
)
def test_the_words(override, said):
    text = refusal(load, "configs/demo.toml", [override])
    assert text is not None and said in text and len(text) < 400


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"run.steps = " + b"9" * 5000, "not valid TOML: it holds a number of too many digits"),
        (b"run.steps = " + b"[" * 20000, "not valid TOML: it is nested too deeply"),
        (b"run.name = '\xff'", "not valid TOML: it is not UTF-8 text (byte 12)"),
    ],
)
def test_a_file_that_no_reader_takes(tmp_path, text, said):
    path = tmp_path / "own.toml"
    path.write_bytes(text)
    assert refusal(load, path) == f"{path}: {said}"
