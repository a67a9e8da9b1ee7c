"""A measurement beside children whose clock is ours to turn: streams the events miss, disturbances, budgets."""

import random
from itertools import count
from types import SimpleNamespace

import pytest
import torch

from core.evaluation.findings import Finding
from core.evaluation.gpu import timing
from core.evaluation.gpu.baseline import once_more
from core.evaluation.gpu.clock import Clock, GpuSettings, Measurement, Side, Timed
from core.evaluation.gpu.device_reference import Samples
from core.evaluation.gpu.outputs import MAX_PLACES, Outputs

FLUSH_MS, IDLE_MS = 0.1, 0.3
PROTOCOL = timing.Protocol()
WANTED = torch.arange(64, dtype=torch.float32).reshape(8, 8)


class World:
    """The one clock of a test, and who disturbs whom."""

    def __init__(self):
        self.now_s, self.blocks, self.rng = 100.0, 0, random.Random(7)
        self.disturbed = lambda block: 1.0
        self.witness = lambda block: False
        self.beside = (0.0, 0.0)
        """From when to when a kernel of somebody's first call runs: calls then take twice as long."""
        self.glances = True
        self.waits_ms = lambda: 0.0
        """For a core, before an answer."""
        self.apart_ms = 0.0
        """What asking for readings takes."""

    def now(self):
        return self.now_s

    def look(self):
        begins, ends = self.beside
        return self.witness(self.blocks) or (ends > begins and begins < self.now_s < ends + 1.0)

    def glance(self):
        self.now_s += 0.01
        return self.glances and self.beside[0] < self.now_s < self.beside[1]

    def calm_down(self, most_s):
        self.now_s = max(self.now_s, self.beside[1])


class Child:
    """Calls take `ms` by the wall; by its events what `says` makes of that."""

    def __init__(self, world, out, ms, says=lambda ms: ms, noise=0.001, wrong_from=10**9, slow_calls=0):
        """The first `slow_calls` take 300 ms."""
        self.world, self.out, self.ms, self.says, self.noise, self.slow_calls = world, out, ms, says, noise, slow_calls
        self.calls, self.wrong_from, self.times = 0, wrong_from, []

    def ask(self, command, *arguments):
        world = self.world
        if command == "flushes":
            world.now_s += (IDLE_MS + arguments[0] * FLUSH_MS) / 1e3
        elif command == "block":
            calls = arguments[0]
            factor = world.disturbed(world.blocks) * (1 + (world.beside[0] < world.now_s < world.beside[1]))
            each = [300.0 if self.calls + number < self.slow_calls else self.ms for number in range(calls)]
            self.times = [ms * factor * (1 + self.noise * world.rng.gauss(0, 1)) for ms in each]
            world.now_s += (IDLE_MS + calls * FLUSH_MS + sum(self.times) + world.waits_ms()) / 1e3
            places = [self.out.arena.tensor(spec) for spec in self.out._places]
            for number, row in enumerate(self.out.samples(calls)[0]):
                row.copy_(WANTED.flatten()[places[0]] + (5 if self.calls + number >= self.wrong_from else 0))
            self.calls += calls
            world.blocks += 1
        elif command == "readings":
            world.now_s += world.apart_ms / 1e3
            return [float(self.says(ms)) for ms in self.times]
        elif command == "take":
            self.out.arena.tensor(self.out.specs[0]).copy_(WANTED)
        return None


class Reference:
    outputs = (WANTED.to("meta"),)

    def check(self, values, outputs, places, context):
        right = torch.equal(outputs[0], WANTED)
        return (None if right else Finding(stage="correctness", category="wrong_value", headline=context)), []


@pytest.fixture
def world():
    return World()


@pytest.fixture
def measure(world):
    held = []

    def run(baseline_ms, candidate_ms, protocol=PROTOCOL, floor_ms=0.0, beside=(0.0, 0.0), **candidate):
        outs = [Outputs("cpu", list(Reference.outputs), whole=whole) for whole in (False, True)]
        held.extend(outs)
        children = Child(world, outs[0], baseline_ms), Child(world, outs[1], candidate_ms, **candidate)
        places = [torch.randint(0, 64, (MAX_PLACES,))]
        right = Samples(wanted=WANTED.flatten()[places[0]].double(), allowed=torch.full((MAX_PLACES,), 1e-6).double())
        task = SimpleNamespace(
            huge=False, device="cpu", reference=Reference(), values=lambda which: None, give_back=lambda: None
        )
        clock = Clock(world, now=world.now, quiet=world)
        clock.learn(children[0], outs[0].sample_trees())
        assert clock.timed == Timed(flush_ms=pytest.approx(FLUSH_MS), idle_ms=pytest.approx(IDLE_MS))
        sides = [Side(child=child, out=out) for child, out in zip(children, outs, strict=True)]
        world.blocks = 0
        one = Measurement(clock, task, *sides, random.Random(3), [[right], [right]], places)
        world.beside = tuple(world.now_s + after_s for after_s in beside)
        return one, one.run(protocol, floor_ms)

    yield run
    for out in held:
        out.close()


def test_steady_sides_need_two_rounds_of_a_hundred_calls(measure):
    one, found = measure(2.0, 1.0)
    assert (found.rounds, found.calls, found.clock) == (2, 100, "events")
    assert found.speedup == pytest.approx(2.0, rel=0.005)
    assert found.speedup_low <= 2.0 <= found.speedup_high
    assert one.recheck() is None


def test_a_very_slow_candidate_keeps_others_waiting_for_few_calls(measure, world):
    before = world.now_s
    _, found = measure(2.0, 1000.0)
    assert found.calls == 4 and found.speedup == pytest.approx(0.002, rel=0.05)
    assert world.now_s - before < 6.0


def test_noise_gets_more_rounds_until_the_budget_is_used(measure):
    protocol = timing.Protocol(budget_s=3.0)
    _, quiet = measure(2.0, 1.0, protocol)
    _, loud = measure(2.0, 1.0, protocol, noise=0.3)
    assert quiet.rounds == 2 < loud.rounds <= protocol.most_rounds
    _, poor = measure(2.0, 1.0, timing.Protocol(budget_s=0.2), noise=0.3)
    assert poor.rounds == 2


@pytest.mark.parametrize("says", [lambda ms: 0.001, lambda ms: ms / 3, lambda ms: float("nan"), lambda ms: -1.0])
def test_work_that_the_events_miss_counts_by_the_wall(measure, world, says):
    before = world.now_s
    _, found = measure(2.0, 2.0, says=says)
    assert found.clock == "wall"
    assert found.speedup == pytest.approx(1.0, rel=0.01)
    assert world.now_s - before < 6.0  # and takes no longer to find out than to measure


@pytest.mark.parametrize("honest", [0, 7, 12])
def test_who_puts_a_blocks_time_into_a_few_readings_gains_nothing(measure, honest):
    """The mean is the wall's, the median is what it likes; `honest` of 25 readings are as they should be."""
    numbers = count()

    def says(ms):
        at = next(numbers) % 25
        return ms if at < honest else (24 - honest) * ms if at == 24 else 1e-3

    _, found = measure(1.0, 1.0, floor_ms=0.05, says=says)
    assert found.speedup < 1.2 and found.speedup_low < 1.2


@pytest.mark.parametrize("share", [0.2, 0.5, 0.6])
def test_eager_is_no_slower_for_a_core_beside_who_is_contradicted_every_time(measure, world, share):
    chance = random.Random(5)
    world.waits_ms = lambda: 2.5 if chance.random() < share else 0.0
    before = world.now_s
    _, found = measure(0.1, 0.11, says=lambda ms: ms / 100)
    assert found.clock == "wall" and found.baseline_ms == pytest.approx(0.1, rel=0.01)
    assert world.now_s - before < 6.0


@pytest.mark.parametrize("seed", range(8))
def test_eager_alone_is_no_slower_for_a_core(world, seed):
    """It is what tells that it was slowed down beside a candidate."""
    chance, out = random.Random(seed), Outputs("cpu", list(Reference.outputs), whole=False)
    child, clock = Child(world, out, 0.1), Clock(world, now=world.now, quiet=world)
    out.choose([torch.randint(0, 64, (MAX_PLACES,))], chance)
    task = SimpleNamespace(reference=SimpleNamespace(training=False))
    world.waits_ms = lambda: 2.5 if chance.random() < 0.6 else 0.0
    alone_ms = once_more(clock, Side(child=child, out=out), task, GpuSettings(), 0.2, chance)
    out.close()
    assert alone_ms == pytest.approx(0.1, rel=0.01)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.6])
def test_a_child_that_waits_for_a_core_is_no_slower_for_it(measure, world, share):
    """A millisecond or two a block, on a machine that compiles with all its cores: as long as many small calls."""
    chance = random.Random(5)
    world.waits_ms = lambda: 2.5 if chance.random() < share else 0.0
    _, found = measure(0.1, 0.11)
    assert found.clock == "events" and found.runtime_ms == pytest.approx(0.11, rel=0.01)
    assert found.width < 0.05 and found.remade > 0


@pytest.mark.parametrize("apart_ms", [0.0, 20.0])
def test_blocks_that_the_wall_contradicts_take_no_longer_than_they_may(measure, world, apart_ms):
    """However short the blocks are beside all that is asked around them."""
    world.apart_ms, before = apart_ms, world.now_s
    _, found = measure(0.05, 0.05, says=lambda ms: ms / 100)
    assert found.clock == "wall" and world.now_s - before < 4.0


def test_one_quick_call_is_not_contradicted_by_the_way_to_the_child(measure, world):
    """Beside a candidate of a second, eager has one call a block."""
    chance = random.Random(5)
    world.waits_ms = lambda: chance.uniform(0.0, 0.09)
    one, found = measure(0.25, 1000.0)
    assert found.remade == 0 and {block.clock for block in one.blocks} == {"events"}
    assert found.baseline_ms == pytest.approx(0.25, rel=0.01)


@pytest.mark.parametrize("slow_calls", [0, 1, 3, 9])
@pytest.mark.parametrize("true_ms", [0.06, 0.12, 0.5])
def test_who_is_slow_while_calls_are_counted_gains_no_slack(measure, true_ms, slow_calls):
    """It says as little as the wall lets through; few calls in a block would let more through."""

    def says(ms):
        return max(1e-4, (ms - timing.WALL_SLACK_MS) / timing.WALL_RATIO + 0.002)

    _, found = measure(1.0, true_ms, says=says, slow_calls=slow_calls)
    assert found.calls >= 100 or slow_calls == 9  # which are most of what is timed
    assert found.speedup < 1.02 / says(true_ms)


def test_a_candidate_that_is_a_hundred_times_as_slow_as_eager_gets_none_of_its_slack(measure):
    _, found = measure(0.5, 50.0, says=lambda ms: (ms - 0.09) / timing.WALL_RATIO - timing.WALL_SLACK_MS)
    assert found.clock == "wall" or found.runtime_ms > 45.0


def test_a_call_that_is_wrong_in_a_timed_block_is_a_finding(measure):
    _, found = measure(2.0, 1.0, wrong_from=40)
    assert isinstance(found, Finding)
    assert (found.stage, found.category) == ("timing", "wrong_value")


def test_a_wrong_whole_output_of_a_timed_call_is_a_finding(measure):
    one, _ = measure(2.0, 1.0)
    one._taken[0][0][3, 3] += 1
    assert one.recheck().stage == "timing"


def _last_candidate_block_is_slow(world):
    world.disturbed = lambda block: 1.4 if block == 10 else 1.0


def test_a_disturbed_block_with_a_witness_is_made_again(measure, world):
    _last_candidate_block_is_slow(world)
    world.witness = lambda block: block in (10, 11)
    _, found = measure(2.0, 1.0)
    assert found.remade == 1
    assert found.speedup == pytest.approx(2.0, rel=0.005)
    assert found.width < 0.01
    assert found.rounds == 2


@pytest.mark.parametrize("ends_s", [0.05, 0.2, 0.5, 0.8, 3.0])
@pytest.mark.parametrize("begins_s", [0.02, 0.1, 0.3])
def test_a_kernel_that_begins_and_ends_while_it_is_measured_does_not_count(measure, world, begins_s, ends_s):
    """An endless one whose process is ended in time, an autotuner: quiet before and after, twice as slow between."""
    beside = (begins_s, begins_s + ends_s)
    one, found = measure(2.0, 1.0, beside=beside)
    assert found.runtime_ms == pytest.approx(1.0, rel=0.01) and found.baseline_ms == pytest.approx(2.0, rel=0.01)
    assert found.speedup == pytest.approx(2.0, rel=0.01)
    assert one.recheck() is None
    world.glances = False  # who does not look between believes it
    _, found = measure(2.0, 1.0, beside=beside)
    assert ends_s < 0.8 or found.runtime_ms > 1.4


def test_an_odd_block_without_a_witness_is_kept(measure, world):
    _last_candidate_block_is_slow(world)
    _, found = measure(2.0, 1.0, timing.Protocol(budget_s=0.1))
    assert found.remade == 0
    assert found.width > 0.05


def test_a_gpu_that_is_never_left_alone_ends_all_the_same(measure, world):
    world.witness = lambda block: True
    world.disturbed = lambda block: 1 + 0.1 * (block % 3)
    _, found = measure(2.0, 1.0, timing.Protocol(budget_s=0.5))
    assert found.remade <= 4


def test_the_floor_counts_where_the_candidate_is_below_it(measure):
    _, found = measure(2.0, 0.1, floor_ms=0.5)
    assert found.below_floor
    assert found.runtime_ms == 0.5
    assert found.speedup_high <= 4.1


def test_an_unknown_baseline_is_refused():
    with pytest.raises(ValueError, match="'jit'"):
        GpuSettings(baseline="jit")
