"""The kinds of facts, with the data each carries. Facts are immutable and never counted twice: the ledger, the report
and replay read nothing else but them, the STEPS chain and the episodes.

    admitted             sampler       group_id, admission, size, task_id, level, role
    left_out             sampler       task_id, why: it would pay for computing nothing (again after a restart)
    left_out_rows        sampler       count, first (reasons): rows that are no tasks, with tasks.refused = "skip"
    joined               every actor   kind, pid, host
    left                 every actor   kind, pid, host
    died                 sampler       kind, actor, pid, handed_on (deliveries that were nakked)
    judged               evaluator     candidate_key, verdict (its kind), category, wall_s, waited_s (since it was asked
                                       for), deliveries; none for a verdict that stood
    weights_published    learner       version, seconds, bytes, fingerprint, incarnation: what a replay of it is held to
    weights_applied      generator     version, seconds
    weights_refused      generator     version, wanted, got
    heldout              generator     group_id, version (that played; of who gives up: the one asked for), seed,
                                       episodes (`core.episodes.heldout_figures.HeldOutEpisode`), [why] (given up)
    evaluation_begun     sampler       version, tasks, samples: its held-out groups are asked for from now on
    evaluated            sampler       version, oldest, newest (that played), tasks (answered), missing, figures
    checkpoint_written   learner       step, folder, position (of EPISODES), seconds
    checkpoint_committed checkpointer  step, folder, seconds, oldest_position (that a kept checkpoint still needs)
    checkpoint_refused   checkpointer, learner    step, folder, reason
    poisoned             sampler, generator, evaluator    stream, key (subject), deaths (of workers), why
    stalled              every actor   text: who waited for what, for how long
    refused              every actor   subject, reason: a message that could not be read, or was too large
    other_settings       learner       step (after which), changes: [dotted name, before, now] of each, as text
    finished             learner       step, version
"""

ADMITTED = "admitted"
LEFT_OUT = "left_out"
LEFT_OUT_ROWS = "left_out_rows"
JOINED = "joined"
LEFT = "left"
DIED = "died"
JUDGED = "judged"
WEIGHTS_PUBLISHED = "weights_published"
WEIGHTS_APPLIED = "weights_applied"
WEIGHTS_REFUSED = "weights_refused"
HELDOUT = "heldout"
EVALUATION_BEGUN = "evaluation_begun"
EVALUATED = "evaluated"
CHECKPOINT_WRITTEN = "checkpoint_written"
CHECKPOINT_COMMITTED = "checkpoint_committed"
CHECKPOINT_REFUSED = "checkpoint_refused"
POISONED = "poisoned"
STALLED = "stalled"
REFUSED = "refused"
OTHER_SETTINGS = "other_settings"
FINISHED = "finished"

ALL = (
    ADMITTED, LEFT_OUT, JOINED, LEFT, DIED, JUDGED, WEIGHTS_PUBLISHED, WEIGHTS_APPLIED, WEIGHTS_REFUSED, HELDOUT,
    EVALUATION_BEGUN, EVALUATED, CHECKPOINT_WRITTEN, CHECKPOINT_COMMITTED, CHECKPOINT_REFUSED, POISONED, STALLED,
    REFUSED, FINISHED, LEFT_OUT_ROWS, OTHER_SETTINGS,
)  # fmt: skip
