"""An engine or a tokenizer by name; imports only what is asked for."""

from typing import TYPE_CHECKING, Any

from core.generation.engine import Engine

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def load_engine(
    kind: str,
    model: str,
    *,
    dtype: str,
    context_tokens: int = 0,
    batch_rows: int = 64,
    threads: int = 0,
    vllm: dict[str, Any] | None = None,
) -> Engine:
    """An engine for the policy in `model`, not yet started. `vllm` are fields of `vllm_engine.VLLMSettings`. Raises
    ValueError for an unknown kind."""
    if kind == "transformers":
        import torch

        from core.generation.transformers_engine import TransformersEngine

        device = "cuda" if torch.cuda.is_available() else "cpu"
        return TransformersEngine(
            model, dtype=dtype, device=device, context_tokens=context_tokens, batch_rows=batch_rows, threads=threads
        )
    if kind == "vllm":
        from core.generation.vllm_engine import VLLMEngine, VLLMSettings

        return VLLMEngine(model, dtype=dtype, context_tokens=context_tokens, settings=VLLMSettings(**(vllm or {})))
    raise ValueError(f"rollout.engine = {kind!r} is unknown; use 'transformers' or 'vllm'")


def load_tokenizer(model: str) -> "PreTrainedTokenizerBase":
    """The tokenizer of the policy in `model`, with its chat template."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model)
