"""Episodes that are too large for a message: a file in the run's folder, and a small `Claim` in their place in the log.

    generator   Ended of 10 MB ─▶ episodes/<group>-<index>-<hash>.ended, then Claim(file, sha256) on EPISODES
    readers     Claim ─▶ the file, its hash compared ─▶ Ended, as if it had come by the bus

The file is whole before the claim stands, and its name holds its hash: who plays the same episode again writes another
one, and the first claim counts. Files go once their claim is trimmed, which is after the record has the episode. As
weights and checkpoints, this wants a run folder that all hosts share.
"""

import asyncio
import hashlib
import os
import re
import time
from pathlib import Path

from bus import codec, subjects
from bus.broker import Broker
from bus.messages import Claim, Ended

ABOVE = 4 * 1024 * 1024
"""Bytes; what is larger goes by file. A server that takes less has the say."""
MAX_BYTES = 256 * 1024 * 1024
"""Largest episode."""
PATIENCE_S = 30.0
"""A shared file system may show another host's file late."""
_LOOK_AGAIN_S = 0.5
_YOUNG_S = 600.0
"""A file without a claim may still be about to get it."""
_NAME = re.compile(r"([0-9a-f]{32})-(\d{1,9})-[0-9a-f]{16}\.ended")


class Claims:
    """The large episodes of one run in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def put(self, ended: Ended, data: bytes) -> Claim:
        """Write `data`, which is `ended` encoded. Raises OSError."""
        episode, sha256 = ended.episode, await asyncio.to_thread(_sha256, data)
        claim = Claim(
            run_id=ended.run_id,
            trace=ended.trace,
            file=f"{episode.group_id}-{episode.index}-{sha256[:16]}.ended",
            sha256=sha256,
            nbytes=len(data),
            admission=ended.admission,
            size=ended.size,
            task_id=episode.task_id,
            level=episode.level,
            role=episode.role,
        )
        await asyncio.to_thread(_write, self._folder / claim.file, data)
        return claim

    async def get(self, claim: Claim) -> Ended:
        """Raises codec.Refused when the file is not there in `PATIENCE_S`, or not what was claimed."""
        if not _NAME.fullmatch(claim.file):
            raise codec.Refused("malformed", f"a claim of {claim.file!r}, which is no name of an episode's file")
        if not 0 <= claim.nbytes <= MAX_BYTES:
            raise codec.Refused("malformed", f"a claim of {claim.nbytes} bytes, at most {MAX_BYTES} are read")
        path = self._folder / claim.file
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                data = await asyncio.to_thread(_read, path, claim.nbytes)
                break
            except OSError as error:
                if time.monotonic() > until:
                    raise codec.Refused("lost", f"{path} holds no whole episode: {error}") from None
            await asyncio.sleep(_LOOK_AGAIN_S)
        if await asyncio.to_thread(_sha256, data) != claim.sha256:
            raise codec.Refused("malformed", f"{path} holds other bytes than were claimed")
        return codec.decode(data, Ended, MAX_BYTES)

    async def sweep(self, broker: Broker, run_id: str, stream: str) -> None:
        """Remove the files that nobody claims (any more)."""
        for path in await asyncio.to_thread(lambda: sorted(self._folder.glob("*.ended"))):
            named = _NAME.fullmatch(path.name)
            if not named or not await asyncio.to_thread(_is_old, path):
                continue
            record = await broker.last(stream, subjects.episode(run_id, named[1], int(named[2])))
            if record is None or path.name.encode() not in record.data:
                await asyncio.to_thread(path.unlink, missing_ok=True)


async def ended(data: bytes, claims: Claims | None) -> Ended:
    """The episode behind a message of EPISODES, wherever it stands. Raises codec.Refused."""
    try:
        return codec.decode(data, Ended)
    except codec.Refused as error:
        if error.reason != "other_type" or claims is None:
            raise
        return await claims.get(codec.decode(data, Claim))


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(f"{path.name}.{os.getpid()}.half")
    try:
        with half.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        half.replace(path)
    except BaseException:
        half.unlink(missing_ok=True)
        raise


def _read(path: Path, nbytes: int) -> bytes:
    with path.open("rb") as file:
        data = file.read(nbytes + 1)
    if len(data) != nbytes:
        raise OSError(f"it has {path.stat().st_size} bytes, {nbytes} were claimed")
    return data


def _is_old(path: Path) -> bool:
    try:
        return time.time() - path.stat().st_mtime > _YOUNG_S
    except OSError:
        return False
