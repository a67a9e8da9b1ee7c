"""Which cards actors of one machine take, what is refused, and what is said of cards that are shared."""

import os

import pytest

from actors.cards import number_cards, take_cards
from configs.cards import numbered_by, problem, shared_by, taken
from configs.judging import Judge
from configs.load import ConfigError, load
from core.evaluation.walls import gpu

GPU = 'model.path = "m"\njudge.device_class = "h100"\njudge.speed = "measured"\n'


def config(folder, text="", base=GPU):
    path = folder / "run.toml"
    path.write_text(base + text)
    return load(path)


def judge(workers, *cards):
    return Judge(device_class="gpu", speed="measured", workers=workers, cards=cards)


@pytest.mark.parametrize(
    ("workers", "cards", "wanted"),
    [
        (2, (4, 5, 6, 7), [(4, 5), (6, 7), (4, 5)]),
        (1, (4, 5, 6), [(4,), (5,), (6,)]),
        (4, (6, 7), [(6, 7), (6, 7), (6, 7)]),
        (2, (5, 6, 7), [(5, 6), (7, 5), (6, 7)]),
        (3, (2,), [(2,), (2,), (2,)]),
        (3, (), [(), (), ()]),
    ],
)
def test_evaluators_go_on_where_the_one_before_stopped(workers, cards, wanted):
    found = judge(workers, *cards)
    assert [found.cards_of(f"evaluator-{number}") for number in range(3)] == wanted
    assert found.cards_of("evaluator") == wanted[0]


@pytest.mark.parametrize("evaluators", [1, 2, 3])
@pytest.mark.parametrize("workers", [1, 2, 3, 5])
@pytest.mark.parametrize("cards", [(0,), (3, 1), (0, 1, 2, 3)])
def test_no_card_is_left_while_another_is_judged_on_twice(evaluators, workers, cards):
    found = judge(workers, *cards)
    given = [card for number in range(evaluators) for card in found.cards_of(f"evaluator-{number}")]
    assert len(set(given)) == min(len(cards), evaluators * workers)


@pytest.mark.parametrize(
    ("text", "base", "said"),
    [
        ("judge.cards = [1, 1]", GPU, "named twice"),
        ("judge.cards = [-1]", GPU, "no number from 0 on"),
        ("judge.cards = [1]", 'model.path = "m"\n', "device_class = 'cpu' judges on none"),
    ],
)
def test_cards_that_can_not_be_are_refused_in_one_line(tmp_path, text, base, said):
    with pytest.raises(ConfigError) as error:
        config(tmp_path, text, base)
    assert said in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "seen", "said"),
    [
        ("judge.cards = [2]", 2, "judge.cards = [2] names card 2, but this machine shows 2, 0 to 1"),
        ("judge.cards = [0]", 0, "but this machine shows none"),
        ("rollout.cards = [4]", 4, "rollout.cards = [4] names card 4"),
        ("judge.cards = [0, 1, 2]\njudge.workers = 2", 8, "use 2 at most: raise judge.workers"),
        ("judge.cards = [0, 1, 2]\njudge.workers = 2\nlocal.evaluators = 2", 8, ""),
        ("judge.cards = [6]\nlocal.evaluators = 0", 1, ""),
        ("rollout.cards = [6]\nlocal.generators = 0", 1, ""),
        ("judge.cards = [0]", 1, ""),
        ("", 1, ""),
    ],
)
def test_cards_that_this_machine_does_not_have_are_named(tmp_path, text, seen, said):
    found = problem(config(tmp_path, text), seen)
    assert said in found and bool(said) == bool(found) and "\n" not in found


VLLM = 'rollout.engine = "vllm"\nweights.transport = '


@pytest.mark.parametrize(
    ("text", "seen", "said"),
    [
        ('"nccl"', 2, "generator-0 takes card 0, which is the learner's"),
        ('"nccl"\nrollout.cards = [1]', 2, ""),
        ('"nccl"\nrollout.cards = [1]\nlearner.ranks = 2', 2, ""),
        ('"nccl"\nrollout.cards = [1, 0]\nlocal.generators = 2', 2, "generator-1 takes card 0"),
        ('"nccl"\nrollout.cards = [0]\nlocal.generators = 0', 2, ""),
        ('"ipc"', 2, ""),
        ('"ipc"\nrollout.cards = [1]', 2, "generator-0 takes [1]: set weights.transport = 'nccl'"),
        ('"ipc"\nrollout.cards = [1, 0]\nlocal.generators = 2', 2, ""),
        ('"ipc"\nrollout.vllm.tensor_parallel = 2', 2, "generator-0 takes [0, 1]"),
        ('"filesystem"\nrollout.cards = [1]', 2, ""),
    ],
)
def test_a_way_of_weights_that_these_cards_do_not_have_is_named(tmp_path, text, seen, said):
    found = problem(config(tmp_path, VLLM + text), seen)
    assert said in found and bool(said) == bool(found) and "\n" not in found


def test_what_everybody_takes(tmp_path):
    text = "learner.ranks = 2\nrollout.cards = [2, 3, 4, 5]\nrollout.vllm.tensor_parallel = 2\njudge.cards = [6, 7]\n"
    found = taken(config(tmp_path, text + "local.generators = 2\nlocal.evaluators = 2\njudge.workers = 1"), 8)
    wanted = {
        "learner-0": (0, 1),
        "generator-0": (2, 3),
        "generator-1": (4, 5),
        "evaluator-0": (6,),
        "evaluator-1": (7,),
    }
    assert found == wanted
    assert taken(config(tmp_path, 'learner.device = "cpu"', 'model.path = "m"\n'), 0) == {}


def test_sharing_is_told_with_whom(tmp_path):
    alone = config(tmp_path, "learner.ranks = 2\nrollout.cards = [2]\njudge.cards = [3]")
    assert shared_by(alone, "evaluator-0", 4) == ""
    one = shared_by(config(tmp_path, "judge.workers = 2"), "evaluator-0", 1)
    assert "cards [0] beside learner-0 on 0, generator-0 on 0:" in one and "\n" not in one
    part = config(tmp_path, "learner.ranks = 2\nrollout.cards = [3]\njudge.cards = [1, 2]\njudge.workers = 2")
    assert "cards [1, 2] beside learner-0 on 1:" in shared_by(part, "evaluator-0", 4)


def test_taken_cards_are_all_that_a_process_sees(monkeypatch):
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "")  # restored as it was, whatever is set here
    monkeypatch.delenv("CUDA_DEVICE_ORDER")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b,GPU-c")
    take_cards((2, 0), "judge.cards")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-c,GPU-a"
    with pytest.raises(ValueError, match=r"judge\.cards names card 2, but CUDA_VISIBLE_DEVICES"):
        take_cards((2,), "judge.cards")
    take_cards((), "judge.cards")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-c,GPU-a"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    take_cards((3,), "judge.cards")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "3"
    assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4, 5,")
    take_cards((1,), "judge.cards")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "5"
    for hidden in ("", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        with pytest.raises(ValueError, match="has 0"):
            take_cards((0,), "judge.cards")


@pytest.mark.parametrize(
    ("shown", "numbers"),
    [("GPU-bb,GPU-a", "1,0"), ("GPU-bb,0", "1,0"), ("1,0", "1,0"), ("GPU-c", "GPU-c"), ("MIG-1", "MIG-1"), ("", "")],
)
def test_vllm_is_told_cards_by_their_numbers(monkeypatch, shown, numbers):
    """It takes every word of CUDA_VISIBLE_DEVICES for a number."""
    known = (gpu.Card("GPU-aa", "/dev/nvidia1"), gpu.Card("GPU-bb", "/dev/nvidia0"))
    monkeypatch.setattr(gpu, "cards", lambda: known)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    number_cards()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == numbers
    assert os.environ["CUDA_DEVICE_ORDER"] == ("FASTEST_FIRST" if numbers == shown else "PCI_BUS_ID")


@pytest.mark.parametrize(
    ("text", "kind", "setting"),
    [
        ("rollout.cards = [1, 2]", "generator", "rollout.cards"),
        ("rollout.cards = [1, 2]\nrollout.vllm.tensor_parallel = 2", "generator", ""),
        ("rollout.cards = [1]", "generator", ""),
        ("judge.cards = [1, 2]\njudge.workers = 1", "evaluator", "judge.cards"),
        ("judge.cards = [1, 2]\njudge.workers = 2", "evaluator", ""),
        ("judge.cards = [1, 2]\njudge.workers = 1", "learner", ""),
    ],
)
def test_who_has_no_number_takes_no_card_by_chance(tmp_path, capsys, text, kind, setting):
    """A name that ends in a process id is no place among cards."""
    from runners.cli import main

    assert numbered_by(config(tmp_path, text), kind) == setting
    if setting:
        assert main(["run", kind, "--config", str(tmp_path / "run.toml")]) == 2
        assert f"{setting} is parted among" in (said := capsys.readouterr().err) and f"--name {kind}-0" in said
