"""What stands in for an episode's message that can't be read: a tombstone, so that its group is closed all the same.

The log takes one message per episode, so nothing better will ever stand there; left out, the group would stay open for
ever and the ledger would never balance. Which episode it was is in the subject. What the group is (admission, size,
task) is in its `admitted` fact, or, before that stands, in what can be read of the message. Every reader makes the same
tombstone of the same message, so learner, record and ledger agree.

A message of a group that nobody admitted gets no tombstone: it belongs to no account.
"""

import re

import msgspec

from bus import codec, facts, subjects, topology
from bus.broker import Broker, Record
from bus.messages import Ended, Fact
from core.episodes.episode import tombstone

REASON = "undecodable"
_GROUP_ID = re.compile(r"[0-9a-f]{32}")
_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")
_FACTS_AT_ONCE = 1024


class Group(msgspec.Struct, frozen=True):
    """The fields that an `admitted` fact and an `Ended` have in common, and those that only the fact has."""

    admission: int
    size: int
    task_id: str = ""
    level: int = 1
    role: str = "generator"


_head = msgspec.msgpack.Decoder(Group)


def misfit(ended: Ended, subject: str) -> str:
    """Why a message that was decoded is none of the episode that its subject names; "" when it is."""
    _, _, _, group_id, index = subject.split(".")
    episode = ended.episode
    if (episode.group_id, str(episode.index)) != (group_id, index):
        return f"it holds episode {episode.group_id}/{episode.index}"
    if not _GROUP_ID.fullmatch(group_id):
        return f"group id {group_id!r} is not 32 hexadecimal digits"
    if not 0 <= episode.index < ended.size:
        return f"index {episode.index} in a group of {ended.size}"
    return ""


class Undecodable:
    """Tombstones for one run. Reads the facts only when there is something to look up, and each of them once."""

    def __init__(self, broker: Broker, run_id: str) -> None:
        self._broker = broker
        self._run_id = run_id
        self._facts = subjects.stream(run_id, topology.FACTS)
        self._next_fact = 1
        self._admitted: dict[str, Group] = {}

    async def tombstone(self, record: Record, why: str) -> Ended | None:
        """In the place of `record`; None when its group was never admitted. Raises TimeoutError when the broker can't
        be asked."""
        _, _, _, group_id, number = record.subject.split(".")
        if not _GROUP_ID.fullmatch(group_id) or not _INDEX.fullmatch(number):
            return None
        group = await self.group(group_id) or _told_by(record.data)
        if group is None or not int(number) < group.size:
            return None
        episode = tombstone(group_id, int(number), group.task_id, REASON, why, level=group.level, role=group.role)
        return Ended(run_id=self._run_id, trace=group_id, episode=episode, admission=group.admission, size=group.size)

    async def group(self, group_id: str) -> Group | None:
        """What its `admitted` fact says; None without one."""
        while group_id not in self._admitted:
            records = await self._broker.read(self._facts, self._next_fact, _FACTS_AT_ONCE, 0)
            if not records:
                return None
            self._next_fact = records[-1].seq + 1
            for record in records:
                if subjects.last_part(record.subject) != facts.ADMITTED:
                    continue
                try:
                    data = codec.decode(record.data, Fact).data
                    self._admitted[data["group_id"]] = msgspec.convert(data, Group)
                except (codec.Refused, KeyError, msgspec.ValidationError):
                    continue  # it admitted nothing that anybody could account for
        return self._admitted[group_id]


def _told_by(data: bytes) -> Group | None:
    """What the message itself says of its group."""
    try:
        group = _head.decode(data)
    except msgspec.DecodeError:
        return None
    return group if group.admission >= 0 else None
