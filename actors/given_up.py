"""The terminal trace of work that is given up, so that nobody waits for it: tombstones for a group's missing episodes,
an empty answer to a held-out group, an infra verdict for a candidate. Workers leave it after repeated failures, the
reaper after repeated deaths."""

from bus import facts
from bus.messages import Ended, Evaluation, Judged, Request
from bus.run_bus import RunBus
from core.episodes.episode import tombstone
from core.evaluation.verdict import Verdict


async def bury_group(bus: RunBus, request: Request, reason: str, why: str) -> None:
    """Publish tombstones for the episodes of a group that do not stand yet, so that the group is closed; a
    held-out group is answered without episodes."""
    if request.heldout:
        await bus.fact(
            facts.HELDOUT,
            trace=request.group_id,
            group_id=request.group_id,
            version=request.version,
            seed=request.seed,
            episodes=[],
            why=why,
        )
        return
    standing = await bus.standing_episodes(request.group_id, request.size)
    for i in set(range(request.size)) - standing:
        episode = tombstone(
            request.group_id, i, request.task.task_id, reason, why, level=request.task.level, role=request.role
        )
        await bus.publish_ended(
            Ended(
                run_id=bus.run_id,
                trace=request.group_id,
                episode=episode,
                admission=request.admission,
                size=request.size,
                generator=bus.actor,
            )
        )


def infra_verdict(evaluation: Evaluation, why: str, actor: str) -> Judged:
    """The verdict of work that we could not do: masked, never a score."""
    verdict = Verdict(
        candidate_key=evaluation.candidate_key, kind="infra", category="evaluator", feedback=f"not judged: {why}"
    )
    return Judged(run_id=evaluation.run_id, trace=evaluation.trace, verdict=verdict, evaluator=actor)
