"""The names that a run measures itself by: one table, and the figures that come from episodes.

`batch_metrics` is the only place where a reward mean or a correct rate is computed, so that the terminal, wandb, the
report and the held-out table can't mean different things by one word. `docs/metrics.md` is written from `METRICS`.
"""

import math
from collections.abc import Container, Sequence

import msgspec

from core.episodes.episode import Episode, Turn


class Metric(msgspec.Struct, frozen=True):
    """Capitals in a name stand for what varies; `N` is a turn's number, counted from 1."""

    name: str
    unit: str
    where: str
    """`step`: in a step record's metrics; `gauge`: in an actor's beats; `held-out`: in both held-out files as well;
    `beside`: of evaluations while the run trains."""
    meaning: str


STEP, BOTH, BESIDE, GAUGE, TOLD = "step", "step, held-out", "beside", "gauge", "step, gauge"
METRICS: tuple[Metric, ...] = (
    Metric("reward/mean", "score", BOTH, "mean over episodes of the best turn's score; every episode counts once"),
    Metric("reward/std", "score", BOTH, "standard deviation of the same, over episodes"),
    Metric("correct/any", "share", BOTH, "episodes with a correct kernel at any turn"),
    Metric("correct/by_turn_N", "share", BOTH, "episodes with a correct kernel at turn N or before"),
    Metric("compiled/turn_1", "share", BOTH, "episodes whose first turn compiled"),
    Metric("repair/turn_2", "share", BOTH, "of the episodes that played a second turn after a wrong first one, those "
           "whose second turn was correct"),
    Metric("speedup/geomean", "ratio", BOTH, "geometric mean of the best correct kernel's speedup, over the episodes "
           "that have one; modelled or measured, as the run's config says"),
    Metric("turns/mean", "turns", BOTH, "turns played per episode"),
    Metric("tokens/completion_mean", "tokens", BOTH, "sampled tokens per episode, all turns"),
    Metric("staleness/mean", "versions", STEP, "version that trains - oldest version that sampled, mean over episodes"),
    Metric("staleness/max", "versions", STEP, "the largest of the same; never above sampler.max_staleness"),
    Metric("episodes/trained", "episodes", STEP, "episodes that this step trained on"),
    Metric("episodes/rejected", "episodes", STEP, "episodes of this step's groups that it did not train on; its record "
           "says why"),
    Metric("time/generation_s", "s", STEP, "mean over episodes of the time that the engine took"),
    Metric("time/judging_s", "s", STEP, "mean over episodes of the time until the verdicts, waiting in line included"),
    Metric("time/wait_s", "s", STEP, "the learner waited for groups"),
    Metric("time/fetch_s", "s", STEP, "reading episodes of the log into memory, on the bus loop's thread beside steps"),
    Metric("time/prepare_s", "s", STEP, "making this step's samples, planning and packing them, hidden or not"),
    Metric("time/prepare_exposed_s", "s", STEP, "of the same, what training waited for; 0 where it ran beside the step "
           "before"),
    Metric("time/learner_s", "s", STEP, "forward, backward and optimizer, and what of packing was not prepared"),
    Metric("time/publish_s", "s", STEP, "from the end of a step until its weights were announced, for the versions "
           "that were announced since the step before"),
    Metric("time/publish_exposed_s", "s", STEP, "of the same, what training waited for: the version before, and the "
           "snapshot"),
    Metric("time/checkpoint_s", "s", STEP, "from the end of a step until its checkpoint was written, for those that "
           "were written since the step before"),
    Metric("time/checkpoint_exposed_s", "s", STEP, "of the same, what training waited for: the checkpoint before, and "
           "the snapshot"),
    Metric("stage/generation_busy", "share", TOLD, "learner: of the last half minute, or this step where it took "
           "longer: the engines had sequences, mean over generators"),
    Metric("stage/judging_busy", "share", TOLD, "of the same time: judging processes were at work, of all there are"),
    Metric("stage/training_busy", "share", TOLD, "of the same time: the learner made steps"),
    Metric("stage/publication_busy", "share", TOLD, "of the same time: weights were on their way out, or training "
           "waited for weights or checkpoints of earlier steps"),
    Metric("stage/generation_episodes", "episodes", TOLD, "mean over the same time: in the engines, or before them"),
    Metric("stage/judging_episodes", "episodes", TOLD, "mean over the same time: waiting for verdicts"),
    Metric("stage/training_episodes", "episodes", TOLD, "mean over the same time: ended and not trained on yet"),
    Metric("stage/limit", "0 to 5", TOLD, "the slowest stage (`core/flow/stages.py`): 0 balanced, 1 generation, 2 "
           "judging, 3 training, 4 publication, 5 staleness: none is busy all the time, they wait for each other"),
    Metric("loss", "–", STEP, "learner: total loss of the update"),
    Metric("policy_loss", "–", STEP, "learner: the objective's part of it, corrections in"),
    Metric("entropy", "nats", STEP, "learner: of the policy, mean over trained tokens"),
    Metric("kl", "nats", STEP, "learner: to the starting policy, k3 whatever is trained; 0 without a reference"),
    Metric("kl_behaviour", "nats", STEP, "learner: of the current policy to the one that sampled, k3"),
    Metric("drift", "nats", STEP, "learner: mean of its log-prob - the engine's; 0 on fresh samples when they agree"),
    Metric("drift_abs_max", "nats", STEP, "learner: the largest of the same, in size"),
    Metric("ratio_mean", "ratio", STEP, "learner: current over sampling probability, mean over trained tokens"),
    Metric("ratio_max", "ratio", STEP, "learner: the largest of the same"),
    Metric("clip_share", "share", STEP, "learner: tokens that the bounds of the objective act on"),
    Metric("tis_mean", "ratio", STEP, "learner: mean of the product of all corrections"),
    Metric("tis_cut_share", "share", STEP, "learner: importance weights that token_tis cut at a bound"),
    Metric("masked_share", "share", STEP, "learner: tokens that corrections set to 0, all together"),
    Metric("masked_share/CORRECTION", "share", STEP, "learner: tokens that this correction alone sets to 0"),
    Metric("ess", "share", STEP, "learner: effective sample size of the ratios to the sampling policy, over tokens; 1 "
           "on policy"),
    Metric("lag/LAG/tokens", "tokens", STEP, "learner: trained tokens of so many versions behind; LAG is 0, 1, 2, 3-4, "
           "5-8 or 9+"),
    Metric("lag/LAG/share", "share", STEP, "learner: of all trained tokens"),
    Metric("lag/LAG/ratio_mean", "ratio", STEP, "learner: current over sampling probability"),
    Metric("lag/LAG/kl_k1", "nats", STEP, "learner: of the sampling policy to the current one, k1"),
    Metric("lag/LAG/kl_k3", "nats", STEP, "learner: the same, k3"),
    Metric("lag/LAG/clip_share", "share", STEP, "learner: tokens that the bounds of the objective act on"),
    Metric("lag/LAG/masked_share", "share", STEP, "learner: tokens that corrections set to 0"),
    Metric("lag/LAG/weight_mean", "ratio", STEP, "learner: mean of the product of all corrections"),
    Metric("lag/LAG/entropy", "nats", STEP, "learner: of the policy"),
    Metric("truncated_share", "share", STEP, "learner: samples with a turn that was cut off at the token limit"),
    Metric("value_loss", "score²", STEP, "learner: the critic's, where there is one"),
    Metric("value_grad_norm", "–", STEP, "learner: the critic's, before clipping"),
    Metric("advantage_abs_mean", "score", STEP, "learner: mean size of the advantage"),
    Metric("lag_mean", "versions", STEP, "learner: version that trains - version that sampled, mean over tokens"),
    Metric("lag_max", "versions", STEP, "learner: the largest of the same"),
    Metric("tokens", "tokens", STEP, "learner: trained tokens"),
    Metric("not_finite_tokens", "tokens", STEP, "learner: tokens without a finite log-prob or loss; any stops it"),
    Metric("grad_norm", "–", STEP, "learner: before clipping"),
    Metric("lr", "–", STEP, "learner: learning rate of this update"),
    Metric("samples", "samples", STEP, "learner: trained on"),
    Metric("micro_batches", "–", STEP, "learner: packed rows, of rank 0"),
    Metric("tokens_per_s", "tokens/s", STEP, "learner: all tokens of the rows, prompts included"),
    Metric("step_s", "s", STEP, "learner: packing, forward, backward and optimizer, in the trainer itself"),
    Metric("plan_s", "s", STEP, "learner: of step_s, refusing samples, advantages, dealing out"),
    Metric("look_s", "s", STEP, "learner: of step_s, the pass before the first gradient, where a recipe has one"),
    Metric("pack_s", "s", STEP, "learner: of step_s, making rows"),
    Metric("forward_backward_s", "s", STEP, "learner: of step_s"),
    Metric("optimizer_s", "s", STEP, "learner: of step_s"),
    Metric("mfu", "share", STEP, "learner: of the card's bfloat16 peak; absent on an unknown card"),
    Metric("peak_gib", "GiB", STEP, "learner: most memory in use on rank 0's card; absent on the CPU"),
    Metric("filling_share", "share", STEP, "learner: tokens of rank 0's rows that only fill them up"),
    Metric("version", "version", STEP, "learner: policy version after the step"),
    Metric("applied", "0 or 1", STEP, "learner: 1 when the weights moved"),
    Metric("refused/REASON", "samples", STEP, "learner: samples left out; the reasons are in docs/learner.md"),
    Metric("refused_tokens/REASON", "tokens", STEP, "learner: sampled tokens of these, which nothing learns from"),
    Metric("compiled", "0 or 1", STEP, "learner: 1 while its blocks run compiled; absent where they never did"),
    Metric("compile_retry", "0 or 1", STEP, "learner: 1 when the step was made again uncompiled: not finite at first"),
    Metric("refused_step/REASON", "0 or 1", STEP, "learner: why the weights did not move"),
    Metric("heldout/FIGURE", "its own", BESIDE, "any held-out figure above, of the held-out tasks"),
    Metric("heldout/episodes/played", "episodes", BESIDE, "of all tasks that were answered"),
    Metric("heldout/episodes/scored", "episodes", BESIDE, "of these, those that the figures are of"),
    Metric("heldout/tasks", "tasks", BESIDE, "answered"),
    Metric("heldout/missing", "tasks", BESIDE, "given up, or not answered in evaluation.answer_timeout_s"),
    Metric("heldout/version", "version", BESIDE, "policy version that was to be evaluated"),
    Metric("heldout/oldest", "version", BESIDE, "the oldest that played a task"),
    Metric("heldout/newest", "version", BESIDE, "the newest; each task is played by one version, but the policy may "
           "change between tasks"),
    Metric("loop_lag_ms", "ms", GAUGE, "every actor: how late its event loop ran, at worst, since the last beat"),
    Metric("rss_mb", "MB", GAUGE, "every actor: resident memory"),
    Metric("cpu_s", "s", GAUGE, "every actor: core time of its process, without those that it started"),
    Metric("refused_messages", "messages", GAUGE, "every actor: messages that it could not read"),
    Metric("leaving", "0 or 1", GAUGE, "every actor: 1 in its last beat"),
    Metric(
        "at_work", "0 or 1", GAUGE,
        "sampler, learner, recorder, checkpointer: 1 once it has made sure that it is the run's only one",
    ),
    Metric("admitted_groups", "groups", GAUGE, "sampler: admitted so far"),
    Metric("open_groups", "groups", GAUGE, "sampler: admitted, and neither trained on nor rejected"),
    Metric("left_out_tasks", "tasks", GAUGE, "sampler: found so far that would pay for computing nothing"),
    Metric("held_version", "version", GAUGE, "sampler: the policy version that every generator holds"),
    Metric("heldout_groups", "groups", GAUGE, "sampler: held-out groups that are asked for and not answered"),
    Metric("tokens_total", "tokens", GAUGE, "generator: tokens sampled since the process started"),
    Metric("reused_total", "tokens", GAUGE, "generator: prompt tokens whose keys and values were still there from the "
           "turn before"),
    Metric("prefilled_total", "tokens", GAUGE, "generator: prompt tokens computed since the process started"),
    Metric("episodes", "episodes", GAUGE, "generator: episodes ended since the process started"),
    Metric("running", "sequences", GAUGE, "generator: sequences in the engine"),
    Metric("busy_s", "s", GAUGE, "generator: time in the engine since the process started; evaluator: time at work of "
           "all judging processes together"),
    Metric("sequence_s", "s", GAUGE, "generator: time that sequences were in the engine or before it, all together"),
    Metric("awaiting", "candidates", GAUGE, "generator: whose verdicts it waits for"),
    Metric("awaited_s", "s", GAUGE, "generator: time that candidates waited for their verdicts, of all together"),
    Metric("paused_s", "s", GAUGE, "generator: time in which weights were swapped"),
    Metric("staged_s", "s", GAUGE, "generator: time in which the next weights were read while sampling went on"),
    Metric("restarts", "–", GAUGE, "generator: engine processes that were replaced"),
    Metric("pins", "–", GAUGE, "generator: evaluations that hold a policy version in place"),
    Metric("held_back_s", "s", GAUGE, "generator: time that new weights waited for these"),
    Metric("verdicts_total", "verdicts", GAUGE, "evaluator: verdicts given since the process started"),
    Metric("verdicts_cached", "verdicts", GAUGE, "evaluator: of these, answered from one that stood"),
    Metric("workers", "processes", GAUGE, "evaluator: judging processes"),
    Metric("busy", "processes", GAUGE, "evaluator: of these, at work"),
    Metric("waiting", "–", GAUGE, "generator: sequences outside the engine; evaluator: candidates without a worker"),
    Metric("judged", "candidates", GAUGE, "evaluator: judged by the workers since the process started"),
    Metric("lease_s", "s", GAUGE, "evaluator: time in which a judging process had its GPU to itself to measure, all "
           "together"),
    Metric("judged_KIND", "candidates", GAUGE, "evaluator: of these, with a verdict of this kind"),
    Metric("gpu_state", "0, 1 or 2", GAUGE, "evaluator: its GPU is healthy, quarantined or unfit"),
    Metric("gpu_quarantines", "–", GAUGE, "evaluator: times that it was quarantined"),
    Metric("gpu_probes_passed", "probes", GAUGE, "evaluator: of the GPU's health"),
    Metric("gpu_probes_failed", "probes", GAUGE, "evaluator: the same"),
    Metric("gpu_ghosts", "–", GAUGE, "evaluator: processes of ours that should have been dead, killed"),
    Metric("gpu_again", "candidates", GAUGE, "evaluator: judged again, since the GPU was in doubt"),
    Metric("gpu_leaked_mb", "MB", GAUGE, "evaluator: GPU memory in use that belongs to no process"),
    Metric("gpu_last_probe_s", "s", GAUGE, "evaluator: the last probe"),
    Metric("gpu_recovery_s_last", "s", GAUGE, "evaluator: the last quarantine"),
    Metric("gpu_recovery_s_max", "s", GAUGE, "evaluator: the longest quarantine"),
    Metric("gpu_fault_CATEGORY", "faults", GAUGE, "evaluator: of this category, since the process started"),
    Metric("worker_restarts", "–", GAUGE, "evaluator: judging processes that were replaced"),
    Metric("step", "step", GAUGE, "learner: last step made"),
    Metric("waiting_episodes", "episodes", GAUGE, "learner: episodes that ended and are not trained on yet"),
    Metric("batches_made_again", "batches", GAUGE, "learner: prepared for a step that had other groups in the end"),
    Metric("duplicate_episodes", "episodes", GAUGE, "learner: episodes that came again and were left out"),
    Metric("disk_free_gb", "GB", GAUGE, "learner: free where the run folder is"),
    Metric("committed_checkpoints", "–", GAUGE, "checkpointer: committed since the process started"),
    Metric("gateway_requests", "requests", GAUGE, "gateway: in hand"),
    Metric("gateway_candidates", "candidates", GAUGE, "gateway: that these wait for; several may share one"),
    Metric("gateway_answers", "answers", GAUGE, "gateway: given since the process started"),
    Metric("gateway_faults", "faults", GAUGE, "gateway: of all evaluators since the last reset"),
    Metric("archived_episodes", "position", GAUGE, "recorder: position in EPISODES up to which all are archived"),
)  # fmt: skip


def batch_metrics(
    episodes: Sequence[Episode],
    version: int | None = None,
    *,
    max_turns: int | None = None,
    left_out: Container[str] = (),
) -> dict[str, float]:
    """The figures of these episodes. Tombstones and episodes without a score, or with one that is not a number, are
    left out of all but `episodes/rejected`. With `version` (the policy that trains on them: the step's version - 1)
    staleness and the counts are in as well, of those that are not `left_out` (ids of episodes that the learner
    refused). `max_turns` names the turns of `correct/by_turn_N`; None takes the longest episode. A figure that nothing
    speaks for is absent, never 0.
    """
    kept = [episode for episode in episodes if episode.trainable and finite(episode)]
    figures: dict[str, float] = {}
    if version is not None:
        trained = [episode for episode in kept if episode.episode_id not in left_out]
        figures["episodes/trained"] = float(len(trained))
        figures["episodes/rejected"] = float(len(episodes) - len(trained))
    if not kept:
        return figures
    best = [episode.best_score for episode in kept]
    figures["reward/mean"] = mean(best)
    figures["reward/std"] = math.sqrt(mean([(score - figures["reward/mean"]) ** 2 for score in best]))
    first = [first_correct(episode) for episode in kept]
    figures["correct/any"] = mean([turn is not None for turn in first])
    for number in range(1, (max_turns or max(len(episode.turns) for episode in kept)) + 1):
        figures[f"correct/by_turn_{number}"] = mean([turn is not None and turn < number for turn in first])
    figures["compiled/turn_1"] = mean([compiled(episode.turns[0]) for episode in kept])
    second = [correct(episode.turns[1]) for episode in kept if len(episode.turns) > 1 and not correct(episode.turns[0])]
    if second:
        figures["repair/turn_2"] = mean(second)
    speedups = [speedup for speedup in map(best_speedup, kept) if speedup]
    if speedups:
        figures["speedup/geomean"] = math.exp(mean([math.log(speedup) for speedup in speedups]))
    figures["turns/mean"] = mean([len(episode.turns) for episode in kept])
    figures["tokens/completion_mean"] = mean([episode.completion_tokens for episode in kept])
    if version is not None:
        lags = [version - oldest for oldest in (episode.oldest_version for episode in trained) if oldest is not None]
        if lags:
            figures["staleness/mean"] = mean(lags)
            figures["staleness/max"] = float(max(lags))
        figures["time/generation_s"] = mean([episode.generation_s for episode in kept])
        figures["time/judging_s"] = mean([episode.judging_s for episode in kept])
    return figures


def finite(episode: Episode) -> bool:
    return all(turn.score is None or math.isfinite(turn.score) for turn in episode.turns)


def correct(turn: Turn) -> bool:
    return turn.verdict is not None and turn.verdict.kind == "pass" and turn.verdict.correct


def compiled(turn: Turn) -> bool:
    return turn.verdict is not None and turn.verdict.compiled


def first_correct(episode: Episode) -> int | None:
    """Position (from 0) of the first turn whose kernel is correct."""
    return next((number for number, turn in enumerate(episode.turns) if correct(turn)), None)


def best_speedup(episode: Episode) -> float | None:
    """The largest speedup among correct kernels; None when there is none."""
    verdicts = [turn.verdict for turn in episode.turns if turn.verdict and correct(turn)]
    return max((verdict.speedup for verdict in verdicts if verdict.speedup), default=None)


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def markdown() -> str:
    """The text of docs/metrics.md."""
    rows = [f"| `{m.name}` | {m.unit} | {m.where} | {m.meaning} |" for m in METRICS]
    return "\n".join(
        [
            "# Metrics",
            "",
            "Every figure that a run keeps, from the table in `core/episodes/metrics.py` (write this page anew with "
            "`python -m core.episodes.metrics > docs/metrics.md`).",
            "",
            "`step`: in the metrics of a step record (`record/steps.jsonl`, wandb). `held-out`: also in "
            "`heldout-before.json` and `heldout-after.json`. `beside`: of the held-out evaluations while the run "
            "trains (`evaluation.every_steps`), in `record/tracked.jsonl` and wandb at the step of the version, and as "
            "`evaluated` facts in `record/facts.jsonl`. `gauge`: in the beats of an actor "
            "(`record/metrics.jsonl`). Capitals in a name stand for what varies; `N` is a turn's number, counted "
            "from 1.",
            "",
            "| name | unit | where | meaning |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


if __name__ == "__main__":
    print(markdown(), end="")
