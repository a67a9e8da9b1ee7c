"""A checkpoint as a Hugging Face folder that `from_pretrained` and vLLM load: config and tokenizer of the policy that
the run started from, the trained weights in the type that the policy is served in."""

import os
import shutil
from pathlib import Path

import torch

from core.checkpoints.store import verify
from core.weights.filesystem import place
from core.weights.shards import iterate_tensors, write_tensors

_SIDE_FILES = ("*.json", "*.jinja", "*.txt", "*.model")
_NOT_THESE = ("model.safetensors.index.json", "recipe.json", "manifest.json")


def export_huggingface(path: str | Path, out: str | Path, *, model: str | Path | None = None) -> Path:
    """Write the checkpoint at `path` as a model folder `out` (replaced when it exists, whole or not at all).

    model: folder with config and tokenizer; by default the one that the checkpoint names. A head that is tied to the
    embedding stays absent from the file, as in the original. Raises Damaged, before anything is made, for weights that
    are not those that were written.
    """
    path, out = Path(path), Path(out)
    manifest = verify(path, ("weights",))
    source = Path(model or manifest.model)
    if not (source / "config.json").is_file():
        raise FileNotFoundError(f"no config.json in {source}: name the folder of the starting policy with `model`")
    aside = out.with_name(f".{out.name}.{os.getpid()}")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    for pattern in _SIDE_FILES:
        for file in source.glob(pattern):
            if file.name not in _NOT_THESE:
                shutil.copyfile(file, aside / file.name)
    dtype = getattr(torch, manifest.dtype)
    write_tensors(aside, ((name, tensor.to(dtype)) for name, tensor in iterate_tensors(path, "weights")))
    place(aside, out)
    return out
