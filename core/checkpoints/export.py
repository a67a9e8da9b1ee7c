"""A checkpoint as a Hugging Face folder that `from_pretrained` and vLLM load: config and tokenizer of the policy that
the run started from, the trained weights in the type that the policy is served in."""

import shutil
from pathlib import Path

import torch

from core.checkpoints.store import Damaged, verify
from core.weights.room import making
from core.weights.shards import iterate_tensors, write_tensors

_SIDE_FILES = ("*.json", "*.jinja", "*.txt", "*.model")
_NOT_THESE = ("model.safetensors.index.json", "recipe.json", "manifest.json")


def export_huggingface(path: str | Path, out: str | Path, *, model: str | Path | None = None) -> Path:
    """Write the checkpoint at `path` as a model folder `out` (replaced when it exists, whole or not at all).

    model: folder with config and tokenizer; by default the one that the checkpoint names. A head that is tied to the
    embedding stays absent from the file, as in the original. Raises Damaged, before anything is made, for weights that
    are not those that were written, and NoRoom, leaving nothing, where they don't fit.
    """
    path, out = Path(path), Path(out)
    manifest = verify(path, ("weights",))
    source = Path(model or manifest.model)
    if not (source / "config.json").is_file():
        raise FileNotFoundError(f"no config.json in {source}: name the folder of the starting policy with `model`")
    dtype = getattr(torch, manifest.dtype, None)
    if not isinstance(dtype, torch.dtype):  # of a manifest from before there were seals
        raise Damaged(f"{path}: manifest.json is damaged: torch has no type {manifest.dtype!r}")
    with making(out, hint="free some, or choose another place (--out)") as made:
        weights = made.counted((name, tensor.to(dtype)) for name, tensor in iterate_tensors(path, "weights"))
        for pattern in _SIDE_FILES:
            for file in source.glob(pattern):
                if file.name not in _NOT_THESE:
                    shutil.copyfile(file, made.aside / file.name)
        write_tensors(made.aside, weights)
    return out
