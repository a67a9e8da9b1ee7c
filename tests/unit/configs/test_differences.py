"""What a run goes on with that it did not have before: named, short, and without credentials."""

from configs.differences import other_settings, told
from configs.schema import RunConfig


def config(**sections):
    return RunConfig.model_validate({"model": {"path": "m"}, **sections})


def test_each_changed_setting_is_named_with_both_values():
    before = config(learner={"lr": 0.5}, rollout={"threads": 1})
    now = config(learner={"lr": 0.1}, rollout={"threads": 2})
    found = other_settings(before, now)
    assert found == [("learner.lr", "0.5", "0.1"), ("rollout.threads", "1", "2")]
    assert told(found) == "goes on with other settings: learner.lr 0.5 -> 0.1, rollout.threads 1 -> 2"
    assert other_settings(before, before) == []


def test_of_many_a_handful_is_told_and_of_a_long_value_its_beginning():
    changes = [(f"a.b{n}", "0", "1") for n in range(8)]
    assert (
        told(changes)
        == "goes on with other settings: " + ", ".join(f"a.b{n} 0 -> 1" for n in range(5)) + ", and 3 more"
    )
    assert told([("a.b", "1" * 99, "2")]) == f"goes on with other settings: a.b {'1' * 37}... -> 2"


def test_credentials_and_other_names_of_the_same_place_are_none():
    before = config(bus={"url": "nats://u:old@host:1", "token": "old"}, run={"folder": "runs"})
    now = config(bus={"url": "nats://u:new@host:1", "token": "new"}, run={"folder": "/somewhere/runs"})
    assert other_settings(before, now) == []
    moved = config(bus={"url": "nats://u:new@other:1"})
    assert "new" not in str(other_settings(before, moved)) and "other" in str(other_settings(before, moved))
