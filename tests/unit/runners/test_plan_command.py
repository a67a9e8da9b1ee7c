"""`kernelmill plan`: what it makes of records whose answers are known, and what it says where they tell too little."""

import json
import re
from pathlib import Path

import pytest

from bus.messages import Fact, GroupOutcome, Step
from configs import splits
from configs.load import load
from core.record.record import Record
from runners import cli

CONFIGS = Path(__file__).parents[3] / "configs"
STEP_S, EPISODES = 20.0, 32
START = 1_750_000_000.0

TIMES = ("time/learner_s", "time/prepare_exposed_s", "time/publish_exposed_s", "time/checkpoint_exposed_s")


def recorded(folder, recipe="demo.toml", *overrides, steps=16, metrics=None, generator=None, evaluator=None, size=0):
    """A run that makes 32 episodes in each step of 20 s: its generator is busy for 8 s of them, each of its judging
    processes for 19 s, its learner for 10 s. `generator` and `evaluator` change what these count in a second."""
    config = load(CONFIGS / recipe, [f"run.steps={steps}", *overrides])
    rates = {"busy_s": 0.4, "sequence_s": 4.0, "tokens_total": 160.0, "episodes": EPISODES / STEP_S} | (generator or {})
    workers = config.judge.workers
    judged = {"busy_s": 0.95 * workers, "judged": 40 / STEP_S, "lease_s": 0.5} | (evaluator or {})
    groups, each = config.sampler.groups_per_step, config.sampler.group_size
    with Record(folder) as record:
        rows = []
        for second in range(0, int(steps * STEP_S) + 1, 5):
            counted = {name: rate * second for name, rate in rates.items()}
            rows.append({"at": START + second, "actor": "generator-0", "running": 10.0, **counted})
            if evaluator is None or evaluator:
                given = {name: rate * second for name, rate in judged.items()}
                rows.append({"at": START + second, "actor": "evaluator-0", "workers": float(workers), **given})
            rows.append({"at": START + second, "actor": "learner-0", "waiting_episodes": 30.0})
        record.append_metrics(rows)
        if size:
            data = {"version": 1, "seconds": 0.1, "bytes": size}
            record.append_facts([Fact(run_id="r", kind="weights_published", actor="learner-0", at=START, data=data)])
        chain = [Step(run_id="r", kind="incarnation", incarnation=0, step=0, version=0, at=START)]
        for step in range(1, steps + 1):
            outcomes = tuple(
                GroupOutcome(group_id=f"{step}/{n}", admission=n, trained=tuple(range(each))) for n in range(groups)
            )
            times = {"time/learner_s": 9.5, "time/prepare_exposed_s": 0.5, "time/publish_s": 1.0, "turns/mean": 1.5}
            times |= {"tokens/completion_mean": 100.0, **(metrics or {})}
            chain.append(Step(run_id="r", kind="step", incarnation=0, step=step, version=step, groups=outcomes,
                              metrics=times, at=START + step * STEP_S))  # fmt: skip
        record.append_steps(chain)
    (folder / "config.json").write_text(config.model_dump_json())
    return folder


def refused(capsys, *words):
    """What it says, in one line, with exit code 2."""
    assert cli.main(["plan", *map(str, words)]) == 2
    out, err = capsys.readouterr()
    assert not out and len(err.strip().splitlines()) == 1
    return err


def planned(capsys, *words):
    assert cli.main(["plan", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_run_without_gpus_is_split_in_processes(tmp_path, capsys):
    told = planned(capsys, recorded(tmp_path), "--cores", 64)
    measured = told["measured"]
    assert (measured["first_step"], measured["last_step"]) == (3, 14), "the first and last ones are left out"
    assert measured["episodes_per_step"] == EPISODES and measured["wall_s"] == pytest.approx(220.0)
    assert measured["generation_s"] == pytest.approx(0.4 / 1.6)
    assert measured["judging_s"] == pytest.approx(1.9 / 1.6) and measured["lease_s"] is None
    assert measured["judged_per_episode"] == pytest.approx(40 / 32)
    assert (measured["learner_s"], measured["publish_s"], measured["sequences"]) == (10.0, 1.0, pytest.approx(10.0))
    assert measured["limit"] == "judging" and measured["busy"]["stage/judging_busy"] == pytest.approx(0.95)
    assert (told["splits"], told["total"]) == ("processes", 5)
    first, last = told["predicted"][0], told["predicted"][-1]
    assert (first["generators"], first["workers"]) == (1, 3)
    assert first["episodes_per_h"] == pytest.approx(3600 * 1.6 * 3 / 2), "half as many judges more, half as fast again"
    assert last["limit"] == "judging" and last["workers"] == 1
    assert first["settings"] == {"local.generators": 1, "local.evaluators": 1, "judge.workers": 3}
    own = told["as_it_ran"]
    assert own["episodes_per_h"] == pytest.approx(measured["episodes_per_h"]) == pytest.approx(3600 * 1.6)
    # Nothing but the learner is left to wait for: 32 episodes in 10 s.
    many = planned(capsys, tmp_path, "--cards", 9, "--cores", 64)["predicted"][0]
    assert many["limit"] == "training" and many["steps_per_h"] == pytest.approx(0.95 * 360)


def test_words_say_what_was_measured_what_is_assumed_and_what_to_paste(tmp_path, capsys):
    recorded(tmp_path)
    assert cli.main(["plan", str(tmp_path), "--cores", "64"]) == 0
    text = capsys.readouterr().out
    assert "steps 4 to 14 in 220 s: 180 steps/h, 5760 episodes/h" in text
    assert "2 judging processes: 0.95 s per verdict, 1.25 verdicts per episode" in text
    assert "judging, 95 % busy (generation 40 %, training 50 %, publication 5 %)" in text
    assert "not measured: how an engine's speed depends on its sequences" in text
    assert "reaches 95 % of what its slowest stage allows" in text
    as_it_ran = next(line for line in text.splitlines() if line.endswith("as it ran"))
    assert "1 rank, 1 generator, 2 judging" in as_it_ran and " 5760 " in as_it_ran
    assert "1.50 times as fast" in text and "[judge]\nworkers = 3" in text


def test_cores_are_a_bound(tmp_path, capsys):
    told = planned(capsys, recorded(tmp_path), "--cores", 2)
    assert {one["limit"] for one in told["predicted"]} == {"cores", "judging"}
    assert cli.main(["plan", str(tmp_path), "--cores", "2"]) == 0
    assert "none is faster than the run's own split" in capsys.readouterr().out


GPU = {"peak_gib": 60.0}


def test_cards_are_split_between_learner_generators_and_judges(tmp_path, capsys):
    run = recorded(tmp_path, "qwen3-8b.toml", metrics=GPU, size=2 * 8 * 10**9)
    told = planned(capsys, run, "--cards", 8)
    assert told["splits"] == "cards"
    ways = {(one["ranks"], one["generators"], one["judge_cards"]) for one in told["predicted"]}
    assert ways == {(r, g, 8 - r - g) for r in range(4, 7) for g in range(1, 8 - r)}
    assert told["measured"]["lease_s"] == pytest.approx(0.5 / 1.6)
    first = told["predicted"][0]
    made = splits.changed(load(run / "config.json"), first["settings"])
    assert len(splits.cards_of(made, "learner")) == first["ranks"] and made.judge.workers == first["workers"]
    # 8 billion parameters: 119 GiB of state, 30 of them in each rank's 60
    assert min(one["ranks"] for one in planned(capsys, run, "--cards", 8, "--card-gib", 80)["predicted"]) == 3
    assert min(one["ranks"] for one in planned(capsys, run, "--cards", 8, "--card-gib", 192)["predicted"]) == 1
    scaled = planned(capsys, run, "--cards", 8, "--scaling", 1)["predicted"]
    assert max(one["steps_per_h"] for one in scaled) >= first["steps_per_h"]
    assert cli.main(["plan", str(run), "--cards", "8"]) == 0
    text = capsys.readouterr().out
    assert "0.25 s of it with the card to itself" in text and "60.0 GiB of a card" in text
    assert "twice the ranks are 1.8 times as fast (--scaling)" in text


def test_how_the_learner_scales_is_measured_with_another_run(tmp_path, capsys):
    run = recorded(tmp_path / "four", "qwen3-8b.toml", metrics=GPU)
    times = GPU | {"time/learner_s": 5.75}  # with what was prepared 6.25 s, instead of 10
    other = recorded(tmp_path / "eight", "qwen3-8b.toml", "learner.ranks=8", "rollout.cards=[8,9]",
                     "judge.cards=[10,11]", metrics=times)  # fmt: skip
    told = planned(capsys, run, "--cards", 8, "--scaling", other)
    assert told["assumed"]["scaling"] == pytest.approx(0.8)
    assert cli.main(["plan", str(run), "--cards", "8", "--scaling", str(other)]) == 0
    assert f"twice the ranks are 1.6 times as fast (measured with {other})" in capsys.readouterr().out
    assert cli.main(["plan", str(run), "--scaling", str(tmp_path / "none")]) == 2
    assert "there is no such run folder" in capsys.readouterr().err
    assert "both runs had 4 of a learner's ranks" in refused(capsys, run, "--scaling", run)


def test_what_was_not_measured_is_said_and_not_made_up(tmp_path, capsys):
    unjudged = recorded(tmp_path / "a", "qwen3-8b.toml", metrics=GPU, evaluator={})
    told = planned(capsys, unjudged, "--cards", 8)
    assert told["measured"]["judging_s"] is None and "judging: no evaluator" in told["not_measured"][0]
    assert all("judging" not in one["idle"] for one in told["predicted"])
    unleased = recorded(tmp_path / "b", "qwen3-8b.toml", metrics=GPU, evaluator={"lease_s": 0.0})
    assert "how long a card is kept" in planned(capsys, unleased, "--cards", 8)["not_measured"][0]
    shared = recorded(tmp_path / "c", "qwen3-0.6b.toml", metrics=GPU)
    assert cli.main(["plan", str(shared), "--cards", "2"]) == 0
    text = capsys.readouterr().out
    assert "stages that shared a card in the run take as long on cards of their own; less is likely" in text
    assert "as it ran" in text


def test_another_recipe_is_planned_for_by_the_runs_times(tmp_path, capsys):
    run = recorded(tmp_path / "run")
    recipe = tmp_path / "mine.toml"
    recipe.write_text(
        f'extends = "{CONFIGS / "demo.toml"}"\n[sampler]\ngroups_per_step = 8\n[episodes]\nmax_turns = 4\n'
    )
    told = planned(capsys, run, "--recipe", recipe, "--cores", 64)
    assert told["assumed"]["episodes_per_step"] == 64.0 and told["assumed"]["open_episodes"] == 192
    assert told["as_it_ran"]["steps_per_h"] == pytest.approx(90.0)
    assert "the recipe's episodes.max_turns = 4: the run's was 2, and these are its times" in told["not_measured"]


def test_a_run_that_goes_on_is_measured_up_to_now(tmp_path, capsys):
    run = recorded(tmp_path, steps=9)
    config = json.loads((run / "config.json").read_text())
    config["run"]["steps"] = 500
    (run / "config.json").write_text(json.dumps(config))
    assert planned(capsys, run)["measured"]["last_step"] == 9


def test_runs_that_tell_too_little_are_refused_in_one_line(tmp_path, capsys):
    assert "holds no record/ of a run" in refused(capsys, tmp_path)
    none = recorded(tmp_path / "none", steps=1)
    (none / "record" / "steps.jsonl").write_text("")
    told = refused(capsys, none)
    assert (
        "0 steps were made, too few to measure" in told
        and "come back later; it must make 8 at least (run.steps)" in told
    )
    assert "7 steps were made, too few" in refused(capsys, recorded(tmp_path / "few", steps=7))
    for odd in (0.0, 1e308):
        timeless = recorded(tmp_path / f"timeless-{odd}", metrics=dict.fromkeys(TIMES, odd))
        assert "nothing is known of training" in refused(capsys, timeless)
    silent = recorded(tmp_path / "silent")
    (silent / "record" / "metrics.jsonl").unlink()
    assert "nothing is known of generation" in refused(capsys, silent)
    (silent / "config.json").unlink()
    assert "holds no config.json" in refused(capsys, silent)


def test_what_a_finished_run_is_told_to_make_is_enough(tmp_path, capsys):
    """Who goes on with it begins a life of its own, whose first steps are left out too."""
    run = recorded(tmp_path / "over", steps=6)
    with Record(run) as record:
        record.append_steps([Step(run_id="r", kind="finished", incarnation=0, step=6, version=6, at=START + 121)])
    wanted = int(re.search(r"go on with it and have it make (\d+) at least", refused(capsys, run))[1])
    for steps, code in ((wanted, 0), (wanted - 1, 2)):
        again = recorded(tmp_path / f"on-{steps}", steps=steps)
        lines = [json.loads(line) for line in (again / "record" / "steps.jsonl").read_text().splitlines()]
        later = [{**line, "incarnation": 1} if line["step"] > 6 else line for line in lines]
        later.insert(7, {**lines[0], "incarnation": 1, "step": 6, "version": 6, "at": START + 121})
        (again / "record" / "steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in later))
        assert cli.main(["plan", str(again)]) == code
    assert wanted == 14


def test_too_few_cards_are_refused_in_one_line(tmp_path, capsys):
    big = recorded(tmp_path / "big", "qwen3-8b.toml", metrics=GPU)
    told = refused(capsys, big, "--cards", "5")
    assert "--cards 5 can't be split: the learner needs 4" in told and "give 6 or more" in told
    small = recorded(tmp_path / "small")
    told = refused(capsys, small, "--cards", "2")
    assert "--cards 2: this run has no GPU" in told and "so 3 or more" in told


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--cards", "0", "wanted a whole number from 1 to 10000"),
        ("--cards", "1000000000", "wanted a whole number from 1 to 10000"),
        ("--scaling", "1.5", "wanted 0.5 (no faster) to 1 (twice as fast), or a run's folder"),
        ("--card-gib", "much", "wanted a number above 0"),
        ("--cores", "nan", "wanted a number above 0"),
    ],
)
def test_options_that_can_not_be_are_refused_in_one_line(tmp_path, capsys, option, value, said):
    with pytest.raises(SystemExit) as left:
        cli.main(["plan", str(tmp_path), option, value])
    assert left.value.code == 2
    assert said in capsys.readouterr().err
