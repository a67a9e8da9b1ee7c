"""Checkpoints in two phases: the learner writes, the checkpointer verifies and commits.

    folder/step-000010.written/      complete, hashed, not yet agreed on: may be committed or thrown away
    folder/step-000010/              committed: what a restart continues from

Inside: `weights.safetensors` (float32 masters by Hugging Face name), `optimizer.safetensors` (full AdamW state),
`random.safetensors`, `consumed.bin` (ids of all groups that the run has trained or rejected, 16 bytes each),
`state.json`, and `manifest.json`, sealed, with the size and sha256 of every other file. Tensors are whole, so that any
number of ranks can continue.

A folder appears under either name whole or not at all: it is filled aside, forced to disk and renamed. Weights,
optimizer, log position and consumed ids are in one folder and so roll back together.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

import msgspec
from torch import Tensor

from core import plain_files
from core.sealed import BrokenSeal, Sealed, sealed, unsealed
from core.weights.room import making, place, sync
from core.weights.shards import read_tensors, write_tensors

ID_BYTES = 16
MAX_MANIFEST = 64 << 20
_HALF = re.compile(r"\.step-\d{6,}\.written\.\d+")
_COMMITTED = re.compile(r"step-(\d{6,})")
_STEM_END = re.compile(r"-\d{5,}-of-|\.")

_NO_ROOM = (
    "checkpoints before it are as they were: free some (old runs, fewer by checkpoints.keep), then `kernelmill up` "
    "again goes on from the last one"
)


class Extra(msgspec.Struct, frozen=True, kw_only=True):
    """What the run must remember beside the weights."""

    version: int
    """Policy version of the weights: updates applied."""
    log_position: int = 0
    """Sequence in the episode log up to which everything is accounted for."""
    consumed: bytes = b""
    """Ids of the groups that were trained or rejected, 16 bytes each, behind each other."""
    incarnation: int = 0
    """Which life of the learner wrote this."""
    notes: dict[str, str] = {}
    """Whatever else, e.g. the config's hash."""

    def __post_init__(self) -> None:
        if len(self.consumed) % ID_BYTES:
            raise ValueError(f"consumed ids are {ID_BYTES} bytes each, got {len(self.consumed)} bytes")

    def consumed_ids(self) -> set[str]:
        """The consumed group ids as 32 hexadecimal digits."""
        return {self.consumed[at : at + ID_BYTES].hex() for at in range(0, len(self.consumed), ID_BYTES)}


def pack_ids(group_ids: Iterable[str]) -> bytes:
    """Group ids (32 hexadecimal digits each) for `Extra.consumed`."""
    return b"".join(bytes.fromhex(group_id) for group_id in group_ids)


class Damaged(ValueError):
    """A checkpoint that is not what its manifest says."""


class FileEntry(msgspec.Struct, frozen=True):
    bytes: int
    sha256: str


class Manifest(Sealed, frozen=True, kw_only=True):
    """`manifest.json`"""

    step: int
    model: str
    """Where config and tokenizer are found: the policy that the run started from."""
    dtype: str
    """Type that the policy is published and exported in."""
    files: dict[str, FileEntry]


def step_folder(folder: str | Path, step: int) -> Path:
    return Path(folder) / f"step-{step:06d}"


def write(
    folder: str | Path,
    step: int,
    *,
    weights: Iterable[tuple[str, Tensor]],
    optimizer: Iterable[tuple[str, Tensor]],
    random: dict[str, Tensor],
    extra: Extra,
    model: str,
    dtype: str,
) -> Path:
    """Write a checkpoint under `folder` and answer with its `.written` folder; one that stands there is replaced.

    weights, optimizer: (name, full CPU tensor), walked through once, in this order. Raises NoRoom, and leaves nothing,
    where they don't fit.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    final = folder / f"step-{step:06d}.written"
    with making(final, hint=_NO_ROOM, durable=True) as made:
        aside, weights, optimizer = made.aside, made.counted(weights), made.counted(optimizer)
        names = write_tensors(aside, weights, stem="weights")
        names += write_tensors(aside, optimizer, stem="optimizer")
        names += write_tensors(aside, random.items(), stem="random")
        (aside / "consumed.bin").write_bytes(extra.consumed)
        (aside / "state.json").write_bytes(msgspec.json.encode(msgspec.structs.replace(extra, consumed=b"")))
        names += ["consumed.bin", "state.json"]
        entries = {name: _entry(aside / name) for name in names}
        manifest = Manifest(step=step, model=model, dtype=dtype, files=entries)
        (aside / "manifest.json").write_bytes(sealed(manifest))
    sync(folder)
    return final


def read_manifest(path: str | Path) -> Manifest:
    """Raises Damaged when there is none or it can't be read."""
    try:
        with plain_files.opened(Path(path) / "manifest.json", f"{path}: manifest.json", MAX_MANIFEST) as file:
            return unsealed(file.read(), Manifest)
    except BrokenSeal as error:
        raise Damaged(f"{path}: manifest.json is damaged: {error}") from None
    except (plain_files.NotPlain, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Damaged(f"{path} has no readable manifest.json: not a whole checkpoint") from error


def verify(path: str | Path, stems: tuple[str, ...] = ()) -> Manifest:
    """Compare every file with the manifest; raises Damaged and names the first file that differs. Sizes of all come
    first, at no time at any size of model; then each is hashed, a piece in memory at a time.

    stems: only the files of these names, e.g. `weights` for `weights.safetensors` and its shards.
    """
    manifest = read_manifest(path)
    wanted = {name: want for name, want in manifest.files.items() if not stems or _STEM_END.split(name)[0] in stems}
    for name, want in wanted.items():
        file = Path(path) / name
        if not file.is_file():
            raise Damaged(f"{path}: {name} is missing")
        if file.stat().st_size != want.bytes:
            raise Damaged(f"{path}: {name} has {file.stat().st_size} bytes, not {want.bytes}")
    for name, want in wanted.items():
        if _entry(Path(path) / name).sha256 != want.sha256:
            raise Damaged(f"{path}: {name} has another sha256 than when it was written")
    return manifest


def commit(path: str | Path) -> Path:
    """Rename `step-N.written` to `step-N` and answer with that. A commit that was done before is answered the same, so
    that it can be repeated after a crash at any point. Verify first."""
    path = Path(path)
    if path.suffix != ".written":
        raise ValueError(f"only a folder step-N.written can be committed, got {path.name!r}")
    final = path.with_suffix("")
    if path.is_dir():
        place(path, final)
        sync(path.parent)
    elif not final.is_dir():
        raise FileNotFoundError(f"neither {path} nor {final.name} beside it: nothing to commit")
    return final


def committed(folder: str | Path) -> list[Path]:
    """Committed checkpoints, oldest step first."""
    folder = Path(folder)
    if not folder.is_dir():
        return []
    found = [(int(match.group(1)), p) for p in folder.iterdir() if (match := _COMMITTED.fullmatch(p.name))]
    return [path for _, path in sorted(found)]


def latest_committed(folder: str | Path) -> Path | None:
    """The checkpoint that a restart continues from, or None."""
    standing = committed(folder)
    return standing[-1] if standing else None


def set_damaged_aside(folder: str | Path) -> list[tuple[int, Path, str]]:
    """Committed checkpoints of which a file is lost, cut off or changed since: newest first, until a whole one stands.
    Each is renamed to `step-N.damaged`, for a person to look at. Answers with (step, folder, what is wrong with it).
    For who is the run's only learner now; reads the newest one as a whole."""
    found = []
    while (path := latest_committed(folder)) is not None:
        try:
            verify(path)
            break
        except Damaged as error:
            aside = path.with_suffix(".damaged")
            place(path, aside)
            found.append((int(path.name.removeprefix("step-")), aside, str(error)))
    return found


def retain(folder: str | Path, keep: int) -> list[Path]:
    """Remove all but the newest `keep` committed checkpoints, and written ones that are older than the last committed;
    answers with what was removed. The last committed one always stays."""
    if keep < 1:
        raise ValueError(f"keep must be at least 1, got {keep}")
    standing = committed(folder)
    gone = standing[:-keep]
    if standing:
        gone += [p for p in Path(folder).glob("step-*.written") if p.with_suffix("").name < standing[-1].name]
    for path in gone:
        hidden = path.with_name(f".{path.name}.gone.{os.getpid()}")
        os.rename(path, hidden)  # so that nobody meets half of one
        shutil.rmtree(hidden)
    return gone


def sweep(folder: str | Path) -> list[Path]:
    """Remove what was being written under `folder` when its writer was killed; answers with what was removed. For who
    is the run's only learner now."""
    halves = sorted(p for p in Path(folder).glob(".step-*") if _HALF.fullmatch(p.name))
    for half in halves:
        shutil.rmtree(half, ignore_errors=True)
    return halves


class Loaded(msgspec.Struct):
    """A checkpoint in memory; tensors are full and on the CPU."""

    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    random: dict[str, Tensor]
    extra: Extra


def load(path: str | Path) -> Loaded:
    """Everything in a checkpoint's folder."""
    path = Path(path)
    return Loaded(
        weights=read_tensors(path, "weights"),
        optimizer=read_tensors(path, "optimizer"),
        random=read_tensors(path, "random"),
        extra=read_extra(path),
    )


def kept_from(folder: str | Path) -> int:
    """Log position from which the oldest committed checkpoint that can be read needs the episodes. The log is trimmed
    up to there, so a position that is not the one that was written must not count."""
    for path in committed(folder):
        try:
            verify(path, ("state", "consumed"))  # small
            return read_extra(path).log_position
        except (OSError, Damaged, msgspec.DecodeError):  # damaged since
            continue
    return 0


def read_extra(path: str | Path) -> Extra:
    """The small part: log position, consumed ids, incarnation, version."""
    path = Path(path)
    state = msgspec.json.decode((path / "state.json").read_bytes(), type=Extra)
    return msgspec.structs.replace(state, consumed=(path / "consumed.bin").read_bytes())


def _entry(path: Path) -> FileEntry:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return FileEntry(path.stat().st_size, digest)
