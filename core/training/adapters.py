"""Low-rank adapters (peft), over the policy as it is or over the policy in 4 bits (bitsandbytes).

Adapters are put into the model's own modules, so that the rest of the learner sees the same causal LM. What is trained
is theirs alone; what is published is the policy with them added in, under the policy's own names, so that engines need
not know of adapters. With the adapters switched off the model is its own reference policy.

Source: LoRA (arXiv 2106.09685), QLoRA (arXiv 2305.14314).
"""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from core.training.settings import TrainerSettings

_LORA = ".lora_"


class AdapterError(ValueError):
    """Adapters that can't be made; the text is one line for the person who asked for them."""


def quantization(settings: TrainerSettings) -> Any:
    """transformers' quantization config, or None. Raises AdapterError where bitsandbytes is missing."""
    if settings.quantize == "none":
        return None
    if importlib.util.find_spec("bitsandbytes") is None:
        raise AdapterError("quantize = 'nf4' needs bitsandbytes, which is not installed: make extra-qlora, "
                           "or set quantize = 'none'")  # fmt: skip
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16 if settings.dtype == "bfloat16" else torch.float32,
    )  # fmt: skip


def add_adapters(lm: Any, settings: TrainerSettings) -> None:
    """Puts fresh adapters into `lm` in place, those alone trainable; `settings.seed` decides their values."""
    if importlib.util.find_spec("peft") is None:
        raise AdapterError("lora_rank > 0 needs peft, which is not installed: make extra-lora, "
                           "or set lora_rank = 0")  # fmt: skip
    from peft import LoraConfig, inject_adapter_in_model

    here = {name.rpartition(".")[2] for name, _ in lm.named_modules()}
    unknown = sorted(set(settings.lora_targets) - here)
    if unknown:
        raise AdapterError(f"lora_targets name modules that the policy has not: {', '.join(unknown)}")
    alpha: Any = settings.lora_alpha  # peft's type says int, its code divides: fractions are fine
    config = LoraConfig(
        r=settings.lora_rank, lora_alpha=alpha, lora_dropout=settings.lora_dropout,
        target_modules=list(settings.lora_targets), bias="none",
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        inject_adapter_in_model(config, lm)
    for name, parameter in lm.named_parameters():
        parameter.requires_grad_(_LORA in name)
        if _LORA in name:
            parameter.data = parameter.data.float()


def adapted(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """(name, layer) of every layer with an adapter."""
    for name, child in module.named_modules():
        if hasattr(child, "lora_A") and hasattr(child, "base_layer"):
            yield name, child


@contextmanager
def without_adapters(module: nn.Module) -> Iterator[None]:
    """The policy as it was before adapters; used for the reference."""
    layers = [layer for _, layer in adapted(module)]
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)
            layer.requires_grad_(False)
            for part in (*layer.lora_A.values(), *layer.lora_B.values()):
                part.requires_grad_(True)


def base_weight(parameter: nn.Parameter) -> Tensor:
    """A parameter's value in floating point, 4-bit ones unpacked."""
    state = getattr(parameter, "quant_state", None)
    if state is None:
        return parameter.detach()
    import bitsandbytes as bnb

    return bnb.functional.dequantize_4bit(parameter.detach(), state)
