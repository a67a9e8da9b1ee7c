"""From a recipe to a policy folder: data, tokenizer, model, training, files.

    make_policy(PolicyRecipe(out="policies/demo", ...), report=print)

The folder is what `from_pretrained` and vLLM load (config, bfloat16 weights, tokenizer, chat template), plus
`recipe.json`: the resolved recipe, versions, counts and the loss curve. It is written aside and renamed, so a run that
is interrupted leaves no half policy.
"""

import json
import os
import platform
import time
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import torch

from core.episodes.chat import Chat
from core.training import sft, sft_data, sft_feedback
from core.training.model import ModelError, build_lm, load_lm
from core.training.sft_tokenizer import END, PAD, train_tokenizer
from core.weights.room import making

_TOKENIZER_SAMPLE = 3000
"""Dialogues that the tokenizer is trained on."""


class RecipeError(ValueError):
    """A recipe that can't be followed; the text is one line for the person who wrote it."""


class Architecture(msgspec.Struct, frozen=True, kw_only=True):
    """A Qwen3-architecture causal LM with tied embeddings; mirrors `SftConfig.Architecture`."""

    vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    context_tokens: int


class PolicyRecipe(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that decides the policy."""

    out: str
    architecture: Architecture
    training: sft.SftSettings
    shares: sft_data.Shares
    data_count: int
    data_seed: int
    feedback: str = ""
    """Recorded verdicts, for second turns of composed data."""
    data_path: str = ""
    """JSON Lines to train on instead of composed data."""
    model: str = ""
    """Policy to continue from, with its tokenizer; empty builds one from `architecture`."""


def make_policy(recipe: PolicyRecipe, report: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """Make the folder `recipe.out` (replaced when it exists); returns what `recipe.json` holds.

    Raises:
        ModelError, RecipeError: what is named is no model, or no data; or training with it leads nowhere.
    """
    started = time.perf_counter()
    torch.manual_seed(recipe.training.seed)
    loaded = _loaded(recipe.model) if recipe.model else None  # first: data may take minutes
    dialogues = _dialogues(recipe)
    kinds = Counter("first" if d.previous is None else "second" for d in dialogues)
    wrong = Counter("first" if d.previous is None else "second" for d in dialogues if d.mistake)
    report(f"{len(dialogues)} examples: {dict(kinds)}, of these wrong on purpose: {dict(wrong)}")

    tokenizer, lm = loaded or _fresh(recipe, dialogues)
    chat = Chat(tokenizer)
    examples = sft_data.tokenize_all(dialogues, chat, min(16, len(os.sched_getaffinity(0))))
    lengths = sorted(len(example.prompt) + len(example.answer) for example in examples)
    context = int(lm.config.max_position_embeddings)
    if lengths[-1] > context:
        raise ModelError(f"the longest example has {lengths[-1]} tokens, the policy's context {context}: raise "
                         f"architecture.context_tokens")  # fmt: skip
    parameters = sum(p.numel() for p in lm.parameters())
    data_s = time.perf_counter() - started
    report(f"{parameters:,} parameters; {lengths[len(lengths) // 2]} tokens an example (longest {lengths[-1]}); "
           f"data ready after {data_s:.0f} s")  # fmt: skip

    total = recipe.training.steps
    pad_id = _id(tokenizer, tokenizer.pad_token or tokenizer.eos_token)
    try:
        curve = sft.train(
            lm, examples, recipe.training, pad_id=pad_id,
            report=lambda p: report(f"step {p.step}/{total}  loss {p.loss:.4f}  lr {p.lr:.2e}  "
                                    f"{p.step_s * 1e3:.0f} ms"),
        )  # fmt: skip
    except FloatingPointError as error:
        raise RecipeError(str(error)) from None
    summary = {
        "recipe": msgspec.to_builtins(recipe),
        "versions": _versions(),
        "device": torch.cuda.get_device_name() if recipe.training.device == "cuda" else platform.machine(),
        "parameters": parameters,
        "examples": {kind: {"count": kinds[kind], "wrong": wrong[kind]} for kind in sorted(kinds)},
        "tokens": {"median": lengths[len(lengths) // 2], "longest": lengths[-1]},
        "seconds": {"data": round(data_s, 1), "training": round(time.perf_counter() - started - data_s, 1)},
        "loss_curve": [[p.step, round(p.loss, 5)] for p in curve],
    }
    _write(recipe, lm, tokenizer, summary)
    return summary


def _dialogues(recipe: PolicyRecipe) -> list[sft_data.Dialogue]:
    try:
        if recipe.data_path:
            return sft_data.read_jsonl(recipe.data_path, recipe.data_count, recipe.data_seed)
    except ValueError as error:
        raise RecipeError(f"data.path: {error}") from None
    try:
        verdicts = sft_feedback.load(recipe.feedback) if recipe.feedback else {}
        return list(sft_data.dialogues(recipe.data_seed, recipe.data_count, recipe.shares, verdicts))
    except (OSError, ValueError, msgspec.DecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise RecipeError(f"data.feedback = {recipe.feedback!r}: {why}") from None


def _loaded(model: str) -> tuple[Any, Any]:
    """(tokenizer, float32 causal LM) of a folder or of the hub."""
    from transformers import AutoTokenizer

    try:
        lm = load_lm(model)
        return AutoTokenizer.from_pretrained(model), lm
    except OSError as error:
        raise ModelError(f"model {model!r} can't be loaded: {' '.join(str(error).split())[:300]}") from error


def _fresh(recipe: PolicyRecipe, dialogues: list[sft_data.Dialogue]) -> tuple[Any, Any]:
    """(tokenizer, float32 causal LM)"""
    from transformers import Qwen3Config

    shape = recipe.architecture
    sample = islice(dialogues, _TOKENIZER_SAMPLE)
    texts = (text for dialogue in sample for text in sft_data.texts_of(dialogue))
    tokenizer = train_tokenizer(texts, shape.vocab, shape.context_tokens)
    config = Qwen3Config(
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        intermediate_size=shape.intermediate,
        max_position_embeddings=shape.context_tokens,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=_id(tokenizer, END),
        pad_token_id=_id(tokenizer, PAD),
    )
    return tokenizer, build_lm(config, recipe.training.seed)


def _id(tokenizer: Any, token: str) -> int:
    return int(tokenizer.convert_tokens_to_ids(token))


def _write(recipe: PolicyRecipe, lm: Any, tokenizer: Any, summary: dict[str, Any]) -> None:
    lm = lm.cpu().to(torch.bfloat16)
    with making(Path(recipe.out), hint="free some, or choose another place (out)") as made:
        made.counted(lm.named_parameters())
        lm.save_pretrained(made.aside)
        tokenizer.save_pretrained(made.aside)
        (made.aside / "recipe.json").write_text(json.dumps(summary, indent=1) + "\n")


def _versions() -> dict[str, str]:
    import tokenizers
    import transformers

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "tokenizers": tokenizers.__version__,
    }
