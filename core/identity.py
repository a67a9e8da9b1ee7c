"""Keys made from content: the same work has the same key, whoever makes it and how often.

Keys name subjects on the bus, so they are lower-case hexadecimal and contain no dots.
"""

import hashlib
import json
from typing import Any


def digest(*parts: str | bytes, size: int = 16) -> str:
    """BLAKE2b of the parts, each length-prefixed so that ("ab", "c") and ("a", "bc") differ; `size` bytes as hex."""
    state = hashlib.blake2b(digest_size=size)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        state.update(len(data).to_bytes(8, "little"))
        state.update(data)
    return state.hexdigest()


def digest_json(value: Any, size: int = 16) -> str:
    """Digest of plain data in its canonical JSON form (sorted keys, no spaces)."""
    return digest(json.dumps(value, sort_keys=True, separators=(",", ":")), size=size)


def group_id(run_id: str, task_id: str, role: str, epoch: int, draw: int) -> str:
    """A group's id: a sampler that restarts makes the same ids again, so re-admission is seen as what it is."""
    return digest(run_id, task_id, role, str(epoch), str(draw))


def candidate_key(task_source: str, candidate_source: str, settings: dict[str, Any], device_class: str) -> str:
    """What a verdict is about: equal keys may share one verdict, anything that could change it is inside."""
    return digest(task_source, candidate_source, digest_json(settings), device_class)
