"""What the stages of a run took, from its record: of the steps of its last incarnation that are neither its first
ones nor its last ones.

While the first steps are made, models are compiled and queues fill; before the last ones nothing more is admitted.
Costs are per episode: what all actors of a kind counted (`record/metrics.jsonl`), over the episodes that ended
meanwhile.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from core.flow.ledger import surviving
from core.flow.plan import Measured, line
from core.flow.stages import KNOWN, Stretch, Stretches, figures, step_of, totals
from core.record import reading
from core.record.files import RecordError
from core.record.reading import StepRow
from core.record.record import METRICS_EVERY_S

FIRST_STEPS = 2
"""Left out at least."""
LEAST_STEPS = 3
"""That are measured."""
MOST_S = 1e7
"""That a step can take."""
BYTES_OF_STATE = 16
"""Per parameter that is trained: master, gradient and two moments, in float32."""
GIB = 2.0**30


def measured(run: str | Path, config: Mapping[str, Any], judge_cards: int = 0) -> Measured:
    """config: the run's, by sections. judge_cards: on which candidates were judged, 0 on CPUs.

    Raises RecordError, in one line with what to do, where the record does not hold enough."""
    sampler, learner = config.get("sampler", {}), config.get("learner", {})
    staleness = int(sampler.get("max_staleness", 0))
    chain = list(reading.steps(run))
    steps = settled(chain, staleness, int(config.get("run", {}).get("steps", 0)))
    if len(steps) < LEAST_STEPS + 1:
        raise RecordError(f"{run}: {_too_few(chain, staleness)}")
    begin, end, made = steps[0].at, steps[-1].at, steps[1:]
    stretches = _stretches(run, config.get("bus", {}).get("dead_after_s", 7.0) + 2 * METRICS_EVERY_S)
    generators, evaluators = (totals(stretches, kind, begin, end) for kind in ("generator", "evaluator"))
    ended = generators.gains.get("episodes", 0.0)
    if generators.seconds < KNOWN * (end - begin) or not ended:
        raise RecordError(
            f"{run}: for half of the time of steps {made[0].step} to {made[-1].step} record/metrics.jsonl has no "
            f"generator that ended episodes, so nothing is known of generation; did a recorder run all the time?"
        )
    times = [step_of(row.at, row.metrics) for row in made]
    spent = [step.training_s + step.exposed_s for step in times]
    if not all(0 <= seconds < MOST_S for seconds in spent) or not sum(spent):
        raise RecordError(
            f"{run}: steps {made[0].step} to {made[-1].step} have no times in record/steps.jsonl, or none that a step "
            f"can take, so nothing is known of training: take another run"
        )
    alone = _alone(stretches, begin, end)
    tokens = generators.gains["tokens_total"] / ended
    judged = evaluators.gains.get("judged", 0.0) if evaluators.seconds >= KNOWN * (end - begin) else 0.0
    judging_s = evaluators.gains["busy_s"] / ended if judged else None
    leases = evaluators.gains.get("lease_s", 0.0) if judge_cards else 0.0
    return Measured(
        first_step=steps[0].step,
        last_step=steps[-1].step,
        wall_s=end - begin,
        episodes_per_step=_consumed(chain, steps[0].step, steps[-1].step) / len(made),
        open_episodes=(staleness + 1) * int(sampler.get("groups_per_step", 1)) * int(sampler.get("group_size", 1)),
        generators=generators.actors,
        generation_s=generators.gains["busy_s"] / ended,
        sequences=_over(generators.gains.get("sequence_s"), generators.gains["busy_s"]),
        tokens_per_episode=tokens,
        turns_per_episode=_mean([row.metrics.get("turns/mean") for row in made]),
        alone_s=alone[0] * tokens if alone else None,
        beside_s=alone[1] * tokens if alone else None,
        workers=_over(evaluators.gains.get("room"), evaluators.seconds) or 0.0,
        judging_s=judging_s,
        judged_per_episode=judged / ended if judged else None,
        lease_s=leases / ended if leases else None,
        judge_cards=judge_cards,
        ranks=int(learner.get("ranks", 1)),
        learner_s=_mean([step.training_s for step in times]),
        exposed_s=_mean([step.exposed_s for step in times]),
        publish_s=_mean([step.publish_s for step in times]),
        busy=figures(stretches, begin, end, times),
        core_s=_core_s(generators.gains, totals(stretches, "learner", begin, end).gains, judging_s, ended),
        peak_gib=max((row.metrics.get("peak_gib") or 0.0 for row in made), default=0.0) or None,
        state_gib=_state_gib(run, config),
    )


def _too_few(chain: Sequence[StepRow], staleness: int) -> str:
    made, first = sum(row.kind == "step" for row in chain), max(FIRST_STEPS, staleness + 1)
    over = bool(chain) and chain[-1].kind == "finished"
    begun = next((row.step for row in reversed(chain) if row.kind == "incarnation"), 0)
    # Who goes on with a finished run begins anew: the first steps after that are left out as well.
    wanted = (chain[-1].step if over else begun) + first + staleness + LEAST_STEPS
    then = "go on with it and have it make" if over else "come back later; it must make"
    return (
        f"{made} {'step was' if made == 1 else 'steps were'} made, too few to measure: the first {first} of a run, or "
        f"since it was taken up again, and the last {staleness} of a finished one are left out, and {LEAST_STEPS} more "
        f"must be there; {then} {wanted} at least (run.steps)"
    )


def settled(chain: Sequence[StepRow], staleness: int, wanted: int) -> list[StepRow]:
    """The steps between which is measured: those of the last incarnation without its first and, where the run is at
    its end, without the last `staleness` ones, during which nothing more was admitted."""
    steps = reading.surviving_steps(chain)
    steps = [row for row in steps if row.incarnation == steps[-1].incarnation]
    if steps and wanted:
        steps = [row for row in steps if row.step <= wanted - staleness]
    return steps[max(FIRST_STEPS, staleness + 1) - 1 :]


def _consumed(chain: Sequence[StepRow], after: int, last: int) -> float:
    """Episodes that ended and left the run, trained on or rejected, in the steps after one up to another."""
    kept, _ = surviving(chain)
    # A rejected group stands between two steps, under the number of the one before it.
    rows = [row for row in kept if after < row.step <= last and row.kind == "step"]
    rows += [row for row in kept if after <= row.step < last and row.kind == "rejected"]
    return float(sum(len(group.trained) + len(group.rejected) for row in rows for group in row.groups))


def _stretches(run: str | Path, silent_s: float) -> list[Stretch]:
    connected = Stretches(silent_s)
    found = []
    for row in reading.metrics(run):
        if isinstance(at := row.get("at"), int | float):
            gauges = {name: value for name, value in row.items() if isinstance(value, int | float)}
            if (one := connected.see(str(row.get("actor")), at, gauges)) is not None:
                found.append(one)
    return found


def _alone(stretches: Sequence[Stretch], begin: float, end: float) -> tuple[float, float] | None:
    """Seconds of a token: (with no sequence in the engine, for each one that is in it)."""
    points = []
    for one in stretches:
        gains = one.gains
        if one.kind == "generator" and begin <= one.begin and one.end <= end and gains.get("tokens_total", 0.0) > 0:
            busy_s, sequence_s = gains.get("busy_s", 0.0), gains.get("sequence_s")
            if busy_s > 0 and sequence_s is not None:
                points.append((sequence_s / busy_s, sequence_s / gains["tokens_total"], gains["tokens_total"]))
    return line(points)


def _core_s(
    generators: Mapping[str, float], learners: Mapping[str, float], judging_s: float | None, ended: float
) -> float | None:
    """Of a core, per episode. Judging processes start others, whose time nobody counts: they are taken to have had a
    core for the same part of the time in which they were busy as engines had."""
    if not generators.get("cpu_s") or not learners.get("cpu_s"):
        return None
    had = min(1.0, generators["cpu_s"] / generators["busy_s"])
    return (generators["cpu_s"] + learners["cpu_s"]) / ended + had * (judging_s or 0.0)


def _state_gib(run: str | Path, config: Mapping[str, Any]) -> float | None:
    """Of masters, gradients and moments, by the size of the weights that were published; None for adapters."""
    if config.get("learner", {}).get("lora_rank") or config.get("learner", {}).get("cpu_offload"):
        return None
    sizes = [fact.data.get("bytes") for fact in reading.facts(run) if fact.kind == "weights_published"]
    width = 4 if config.get("model", {}).get("dtype") == "float32" else 2
    return sizes[-1] / width * BYTES_OF_STATE / GIB if sizes and sizes[-1] else None


def _mean(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else 0.0


def _over(part: float | None, whole: float) -> float | None:
    return part / whole if part is not None and whole else None
