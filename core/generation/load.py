"""An engine or a tokenizer by name; imports only what is asked for."""

from typing import TYPE_CHECKING

from core.generation.engine import Engine

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def load_engine(
    kind: str, model: str, *, dtype: str, context_tokens: int = 0, batch_rows: int = 64, threads: int = 0
) -> Engine:
    """An engine for the policy in `model`, not yet started. Raises ValueError for an unknown kind."""
    if kind == "transformers":
        import torch

        from core.generation.transformers_engine import TransformersEngine

        device = "cuda" if torch.cuda.is_available() else "cpu"
        return TransformersEngine(
            model, dtype=dtype, device=device, context_tokens=context_tokens, batch_rows=batch_rows, threads=threads
        )
    raise ValueError(f"engine {kind!r} is not available in this version; use rollout.engine = 'transformers'")


def load_tokenizer(model: str) -> "PreTrainedTokenizerBase":
    """The tokenizer of the policy in `model`, with its chat template."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model)
