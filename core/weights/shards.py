"""Tensors to safetensors files and back, one tensor in memory at a time beyond the file that is being filled.

Files are named as Hugging Face names them, so that a folder with a config beside them can be loaded by anybody:
`model.safetensors`, or `model-00001-of-00003.safetensors` ... with `model.safetensors.index.json`.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

MAX_SHARD_BYTES = 4 * 2**30


def save(tensors: Mapping[str, Tensor], path: Path, metadata: Mapping[str, str]) -> None:
    """One safetensors file, readable by whom any file made there is: safetensors itself lets its owner alone read it,
    and policies are served, and their weights read, by others."""
    with path.open("wb") as plain:
        mode = os.fstat(plain.fileno()).st_mode & 0o777
    save_file(dict(tensors), path, metadata=dict(metadata))
    path.chmod(mode)


def write_tensors(
    folder: Path, tensors: Iterable[tuple[str, Tensor]], *, stem: str = "model", max_shard_bytes: int = MAX_SHARD_BYTES
) -> list[str]:
    """Write named CPU tensors into `folder` (which exists); returns the names of the files made, index included."""
    parts: list[list[str]] = []
    held: dict[str, Tensor] = {}
    size = total = 0

    def flush() -> None:
        nonlocal held, size
        save(held, folder / f"{stem}-part{len(parts) + 1}", {"format": "pt"})
        parts.append(list(held))
        held, size = {}, 0

    for name, tensor in tensors:
        nbytes = tensor.numel() * tensor.element_size()
        if held and size + nbytes > max_shard_bytes:
            flush()
        held[name] = tensor.detach().contiguous()
        size += nbytes
        total += nbytes
    if held or not parts:
        flush()

    if len(parts) == 1:
        os.replace(folder / f"{stem}-part1", folder / f"{stem}.safetensors")
        return [f"{stem}.safetensors"]
    names = [f"{stem}-{i + 1:05d}-of-{len(parts):05d}.safetensors" for i in range(len(parts))]
    for i, name in enumerate(names):
        os.replace(folder / f"{stem}-part{i + 1}", folder / name)
    weight_map = {tensor: name for name, part in zip(names, parts, strict=True) for tensor in part}
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / f"{stem}.safetensors.index.json").write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")
    return [*names, f"{stem}.safetensors.index.json"]


def iterate_tensors(folder: Path, stem: str = "model") -> Iterator[tuple[str, Tensor]]:
    """Named tensors of a folder made by `write_tensors`, one by one. Raises FileNotFoundError without them."""
    files = [folder / f"{stem}.safetensors"]
    if not files[0].exists():
        files = sorted(folder.glob(f"{stem}-*-of-*.safetensors"))
    if not files:
        raise FileNotFoundError(f"no {stem}.safetensors in {folder}")
    for path in files:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a dict
                yield name, file.get_tensor(name)


def read_tensors(folder: Path, stem: str = "model") -> dict[str, Tensor]:
    """All of them."""
    return dict(iterate_tensors(folder, stem))
