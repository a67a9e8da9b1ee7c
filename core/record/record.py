"""The recorder's hand: append what came off the streams to the run's record, each message once.

    record/facts.jsonl       one fact a line          stream FACTS
    record/steps.jsonl       one chain record a line  stream STEPS
    record/episodes.msgpack  ended episodes, whole    stream EPISODES
    record/metrics.jsonl     gauges over time         (no stream: made from beats)
    record/position.json     per stream: the last sequence that is in the file, and the file's length at that moment

    record = Record(run_folder)
    batch = await bus.read("FACTS", record.position("FACTS") + 1)
    record.append_facts(facts, last_seq=batch[-1].seq)

Data first, position after it. A crash between the two leaves records that the position does not know: their keys are
remembered on opening, and the same messages, read again, are not appended again. So nothing is lost and nothing stands
twice, and only what `position` covers may be trimmed from the bus.

Append facts and episodes before the steps that rest on them (read where STEPS ends first, then the others): a reader
that looks while the run goes on then never sees a step whose admission is missing.
"""

import fcntl
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import msgspec

from core.identity import digest
from core.record import files
from core.record.files import RecordError

METRICS_EVERY_S = 5.0
"""Between rows of gauges: a beat in the record is as much older than one on the bus."""
LOCK_WAIT_S = 10.0
"""A writer that is being ended may still hold it."""
FACTS, STEPS, EPISODES, METRICS = "FACTS", "STEPS", "EPISODES", "METRICS"
FILES = {FACTS: "facts.jsonl", STEPS: "steps.jsonl", EPISODES: "episodes.msgpack", METRICS: "metrics.jsonl"}
"""Stream -> file in run folder/record."""


class _Episode(msgspec.Struct):
    group_id: str
    index: int


class _Ended(msgspec.Struct):
    episode: _Episode


class _Position(msgspec.Struct):
    seq: int = 0
    bytes: int = 0


_decode_ended = msgspec.msgpack.Decoder(_Ended).decode


def positions(path: Path) -> dict[str, tuple[int, int]]:
    """Stream -> (last sequence in its file, the file's length then), of a record's position.json; none where it is
    absent. Raises RecordError."""
    return {stream: (at.seq, at.bytes) for stream, at in _read_positions(path).items()}


class Record:
    """One run's record, open for appending. One writer at a time; not for use from several threads."""

    def __init__(self, run_folder: str | Path) -> None:
        """Opens or makes run_folder/record, and cuts off what a crash left half written. Raises RecordError when
        another process writes there."""
        self.folder = Path(run_folder) / "record"
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = _locked(self.folder)
        self._positions = _read_positions(self.folder / "position.json")
        self._appenders: dict[str, files.Appender] = {}
        self._unplaced: dict[str, set[str]] = {}
        for stream, name in FILES.items():
            path = self.folder / name
            at = self._positions.setdefault(stream, _Position())
            if path.exists() and path.stat().st_size < at.bytes:
                raise RecordError(
                    f"{path} has {path.stat().st_size} bytes, but position.json says {at.bytes}: the file was cut or "
                    f"replaced; restore it, or remove position.json to record the streams again from their start"
                )
            if stream == EPISODES:
                tail = [(_map_key(value), end) for value, end in files.maps(path, at.bytes)]
            else:
                tail = [(line_key(line), end) for line, end in files.lines(path, at.bytes)]
            whole = tail[-1][1] if tail else at.bytes
            self._unplaced[stream] = {key for key, _ in tail}
            if path.exists():
                self._appenders[stream] = files.Appender(path, whole)

    def position(self, stream: str) -> int:
        """Sequence of the last message of `stream` that is safely in the record; 0 when there is none."""
        return self._positions[stream].seq

    def append_facts(self, facts: Iterable[msgspec.Struct | Mapping[str, Any]], last_seq: int | None = None) -> int:
        """Append facts (`bus.messages.Fact`, or plain mappings) and note that the stream is in up to `last_seq`.
        Returns how many were new."""
        return self._append_lines(FACTS, facts, last_seq)

    def append_steps(self, steps: Iterable[msgspec.Struct | Mapping[str, Any]], last_seq: int | None = None) -> int:
        """Append records of the chain (`bus.messages.Step`)."""
        return self._append_lines(STEPS, steps, last_seq)

    def append_metrics(self, rows: Iterable[Mapping[str, Any]]) -> int:
        """Append rows {"at": s since the epoch, "actor": name, gauge: value, ...}."""
        return self._append_lines(METRICS, rows, None)

    def append_episodes(self, ended: Iterable[msgspec.Struct | bytes], last_seq: int | None = None) -> int:
        """Append ended episodes: `bus.messages.Ended`, or its MessagePack bytes as they came off the bus."""
        keyed = []
        for message in ended:
            data = message if isinstance(message, bytes) else msgspec.msgpack.encode(message)
            episode = _decode_ended(data).episode
            keyed.append((episode_key(episode.group_id, episode.index), data))
        return self._append(EPISODES, keyed, last_seq)

    def _append_lines(self, stream: str, messages: Iterable[Any], last_seq: int | None) -> int:
        encoded = [msgspec.json.encode(message) for message in messages]
        return self._append(stream, [(line_key(line), line + b"\n") for line in encoded], last_seq)

    def _append(self, stream: str, keyed: Sequence[tuple[str, bytes]], last_seq: int | None) -> int:
        unplaced = self._unplaced[stream]
        new = [data for key, data in keyed if key not in unplaced]
        unplaced.difference_update(key for key, _ in keyed)
        if new:
            # Made with its first record: a file that is absent says that this run does not keep it.
            if stream not in self._appenders:
                self._appenders[stream] = files.Appender(self.folder / FILES[stream], 0)
            self._appenders[stream].append(new)
        if last_seq is not None:
            if last_seq < self._positions[stream].seq:
                raise ValueError(
                    f"{stream}: position {last_seq} is behind {self._positions[stream].seq}, which is recorded already"
                )
            # While some of the records on disk have not been met in the stream again, the next opening must see them.
            written = self._positions[stream].bytes if unplaced else self._length(stream)
            self._positions[stream] = _Position(last_seq, written)
            files.replace(self.folder / "position.json", msgspec.json.encode(self._positions))
        return len(new)

    def _length(self, stream: str) -> int:
        return self._appenders[stream].bytes if stream in self._appenders else 0

    def close(self) -> None:
        for appender in self._appenders.values():
            appender.close()
        self._lock.close()

    def __enter__(self) -> "Record":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def episode_key(group_id: str, index: int) -> str:
    return f"{group_id}/{index}"


def _map_key(ended: Mapping[str, Any]) -> str:
    return episode_key(ended["episode"]["group_id"], ended["episode"]["index"])


def line_key(line: bytes) -> str:
    """A line is its own identity: the same message is encoded to the same bytes."""
    return digest(line)


def being_written(run_folder: str | Path) -> bool | None:
    """Whether a recorder is at work on this machine; None where that can't be told."""
    try:
        with (Path(run_folder) / "record" / ".lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # a recorder that begins just now tries again
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    except OSError:  # a file system without locks, or somebody else's folder
        return None
    return False


def _locked(folder: Path) -> IO[str]:
    """A lock on the folder, for as long as the file is open: two writers would cut off each other's records."""
    lock = (folder / ".lock").open("a+")
    until = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:
            if time.monotonic() > until:
                raise RecordError(f"{folder} is being written by another recorder; stop that one first") from None
            time.sleep(0.1)
        except OSError:  # a file system without locks
            return lock


def _read_positions(path: Path) -> dict[str, _Position]:
    if not path.exists():
        return {}
    try:
        with files.opened(path) as file:
            return msgspec.json.decode(file.read(), type=dict[str, _Position])
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise RecordError(
            f"{path} is no position file ({error}); remove it to record the streams again from their start"
        ) from error
