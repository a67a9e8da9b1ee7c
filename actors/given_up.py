"""The terminal trace of work that is given up, so that nobody waits for it: tombstones for a group's missing episodes,
an empty answer to a held-out group, an infra verdict for a candidate. Workers leave it after repeated failures, the
reaper after repeated deaths."""

from bus import facts
from bus.messages import Ended, Evaluation, Judged, Request
from bus.run_bus import RunBus
from bus.undecodable import Group
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
    task = request.task
    group = Group(request.admission, request.size, task.task_id, task.level, request.role)
    await _bury(bus, request.group_id, group, reason, why)


async def bury_unread_group(bus: RunBus, group_id: str, reason: str, why: str) -> None:
    """The same for a group whose request nobody can read: what it is stands in its `admitted` fact. A held-out group
    was never admitted; its sampler gives it up by itself."""
    group = await bus.admitted(group_id)
    if group is not None:
        await _bury(bus, group_id, group, reason, why)


async def _bury(bus: RunBus, group_id: str, group: Group, reason: str, why: str) -> None:
    for i in set(range(group.size)) - await bus.standing_episodes(group_id, group.size):
        episode = tombstone(group_id, i, group.task_id, reason, why, level=group.level, role=group.role)
        await bus.publish_ended(
            Ended(
                run_id=bus.run_id,
                trace=group_id,
                episode=episode,
                admission=group.admission,
                size=group.size,
                generator=bus.actor,
            )
        )


def infra_verdict(evaluation: Evaluation, why: str, actor: str) -> Judged:
    """The verdict of work that we could not do: masked, never a score."""
    return unread_verdict(evaluation.run_id, evaluation.candidate_key, why, actor, trace=evaluation.trace)


def unread_verdict(run_id: str, key: str, why: str, actor: str, trace: str = "") -> Judged:
    verdict = Verdict(candidate_key=key, kind="infra", category="evaluator", feedback=f"not judged: {why}")
    return Judged(run_id=run_id, trace=trace, verdict=verdict, evaluator=actor)
