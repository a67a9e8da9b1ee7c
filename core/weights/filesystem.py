"""Weights through a shared folder: `folder/v000012/` holds the full weights of policy version 12 and a manifest.

A version appears whole or not at all (written aside, then renamed), so a reader never sees half of one. Publishing a
version removes what is newer: such weights belong to a learner that was rolled back. A reader that finds its version
gone was too slow and asks for the newest.
"""

import contextlib
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from core.sealed import BrokenSeal, Sealed, sealed, unsealed
from core.weights.fingerprint import Fingerprint
from core.weights.room import making
from core.weights.shards import iterate_tensors, read_tensors, write_tensors

_NAME = re.compile(r"v(\d{6,})")
_NO_ROOM = "free some, or set weights.folder to a place with room, then `kernelmill up` again"


class DamagedWeights(ValueError):
    """A version's folder that does not hold what was published."""


class Manifest(Sealed, frozen=True, kw_only=True):
    """`manifest.json` of a version."""

    version: int
    fingerprint: str
    """`core.weights.fingerprint` over all tensors as written."""
    dtype: str
    tensors: int
    bytes: int
    files: tuple[str, ...]
    source: str = ""
    """Where else the weights can be had (`core.weights.incoming`), while the learner that published them lives."""


def version_folder(folder: str | Path, version: int) -> Path:
    return Path(folder) / f"v{version:06d}"


def publish(
    folder: str | Path, version: int, tensors: Iterable[tuple[str, Tensor]], *, keep: int = 3, durable: bool = False
) -> Manifest:
    """Write the weights of `version` into `folder` and keep the newest `keep` versions.

    tensors: (Hugging Face name, CPU tensor), full and each once; a head tied to the embedding is left out.
    durable: force the files to disk first. Not needed for a hand-over: after a power cut the learner publishes again.
    """
    if keep < 1:
        raise ValueError(f"keep must be at least 1, got {keep}")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    seal, size, dtypes = Fingerprint(), 0, set()

    def added(tensors: Iterable[tuple[str, Tensor]]) -> Iterable[tuple[str, Tensor]]:
        nonlocal size
        for name, tensor in tensors:
            seal.add(name, tensor)
            size += tensor.numel() * tensor.element_size()
            dtypes.add(str(tensor.dtype).removeprefix("torch."))
            yield name, tensor

    with making(version_folder(folder, version), hint=_NO_ROOM, durable=durable) as made:
        files = write_tensors(made.aside, added(made.counted(tensors)))
        manifest = Manifest(
            version=version, fingerprint=seal.hexdigest(), dtype="+".join(sorted(dtypes)), tensors=seal.count,
            bytes=size, files=tuple(files),
        )  # fmt: skip
        (made.aside / "manifest.json").write_bytes(sealed(manifest))
    retain(folder, newest=version, keep=keep)
    return manifest


def retain(folder: Path, *, newest: int, keep: int) -> list[int]:
    """Remove versions above `newest` and all but `keep` up to it; returns what was removed."""
    standing = versions(folder)
    stale = [v for v in standing if v > newest] + [v for v in standing if v <= newest][:-keep]
    for version in stale:
        path = version_folder(folder, version)
        hidden = path.with_name(f".{path.name}.gone.{os.getpid()}")
        with contextlib.suppress(FileNotFoundError):  # somebody else removed it
            os.rename(path, hidden)
        shutil.rmtree(hidden, ignore_errors=True)
    return stale


def run_root(shared: str, run: str, own: str | Path) -> Path:
    """Where a run's incarnations publish: `own`, in its folder, or below `shared`, which other runs may name too, since
    recipes that extend one another do. Their incarnations have the same numbers, and retire each other's folders."""
    return Path(shared) / run if shared else Path(own)


def incarnation_folder(root: str | Path, incarnation: int) -> Path:
    """Where one incarnation of the learner publishes: a version may come again after a rollback, with other weights."""
    return Path(root) / f"i{incarnation:03d}"


def retire(root: str | Path, incarnation: int) -> list[int]:
    """Remove what incarnations before `incarnation` published; returns which. Called when a policy of the newer one
    stands: whoever still reads an older folder finds it gone, and the newer policy."""
    found = (re.fullmatch(r"i(\d{3,})", path.name) for path in Path(root).iterdir())
    old = sorted(number for match in found if match and (number := int(match.group(1))) < incarnation)
    for number in old:
        shutil.rmtree(incarnation_folder(root, number), ignore_errors=True)
    return old


def versions(folder: str | Path) -> list[int]:
    """Versions that stand in `folder`, ascending."""
    folder = Path(folder)
    if not folder.is_dir():
        return []
    found = (_NAME.fullmatch(path.name) for path in folder.iterdir())
    return sorted(int(match.group(1)) for match in found if match)


def read_manifest(path: str | Path) -> Manifest:
    """The manifest of a version's folder. Raises FileNotFoundError when the version is gone, DamagedWeights."""
    try:
        return unsealed((Path(path) / "manifest.json").read_bytes(), Manifest)
    except (BrokenSeal, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DamagedWeights(f"weights in {path}: manifest.json is damaged: {error}") from None


def read(path: str | Path, *, verify: bool = True) -> dict[str, Tensor]:
    """All tensors of a version's folder, in the published dtype, on the CPU.

    Raises DamagedWeights when they don't have the manifest's fingerprint, FileNotFoundError when the version is gone.
    """
    path = Path(path)
    manifest = read_manifest(path)
    tensors = read_tensors(path)
    if verify:
        seal = Fingerprint()
        for name, tensor in tensors.items():
            seal.add(name, tensor)
        if seal.hexdigest() != manifest.fingerprint:
            raise DamagedWeights(
                f"weights in {path} have fingerprint {seal.hexdigest()}, not {manifest.fingerprint}: damaged"
            )
    return tensors


@torch.no_grad()
def load_into(model: torch.nn.Module, path: str | Path) -> str:
    """Copy a version's weights into an unsharded transformers model, cast to its dtype; returns the fingerprint of what
    the model now holds, in the published dtype (equal to the manifest's when all of it arrived).

    Raises ValueError for a tensor that the model doesn't have, one that it misses, or another shape.
    """
    own = dict(model.named_parameters())  # tied parameters appear once
    missing = set(own)
    seal = Fingerprint()
    for name, tensor in iterate_tensors(Path(path)):
        if name not in own or own[name].shape != tensor.shape:
            got = tuple(own[name].shape) if name in own else "absent"
            raise ValueError(f"{path}: {name} {tuple(tensor.shape)} doesn't fit the model, where it is {got}")
        own[name].copy_(tensor)
        missing.discard(name)
        seal.add(name, own[name].to(tensor.dtype))
    if missing:
        raise ValueError(f"{path} lacks {len(missing)} of the model's tensors, e.g. {sorted(missing)[0]!r}")
    return seal.hexdigest()
