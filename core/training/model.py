"""The policy as the learner holds it: a transformers causal LM that answers with log-probs instead of logits.

    model = load_policy("policies/tiny", device="cpu")
    logprobs, entropies = model(packed)                  # [trained tokens] each, through the chunked head

Everything runs inside `PolicyModel.forward`, so that the root's FSDP hooks gather the embedding, the last norm and the
head before they are used and reduce their gradients after. Master weights are float32; with `dtype = "bfloat16"` FSDP2
casts what it gathers and reduces gradients in float32. A single rank in float32 needs none of this and stays a plain
module.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from core.training.attention import attention_kwargs, register
from core.training.logprobs import chunked_logprobs
from core.training.packing import Packed

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class ModelError(ValueError):
    """A model that can't be used; the text is one line for the person who named it."""


class PolicyModel(nn.Module):
    """Wraps a transformers causal LM (`lm`) without adding parameters."""

    def __init__(self, lm: Any) -> None:
        super().__init__()
        self.lm: Any = lm
        self.compute_dtype = torch.float32

    def forward(self, packed: Packed, want_entropy: bool = True) -> tuple[Tensor, Tensor]:
        """(log-probs, entropies), float32 [trained tokens], of `packed.targets` at `packed.picked`."""
        hidden = self.lm.model(
            input_ids=packed.ids[None],
            position_ids=packed.position_ids[None],
            use_cache=False,
            **attention_kwargs(packed.lengths, packed.cu_seqlens, self.compute_dtype),
        ).last_hidden_state[0]
        picked = hidden.index_select(0, packed.picked)
        return chunked_logprobs(picked, self.lm.lm_head.weight, packed.targets, want_entropy=want_entropy)

    @property
    def blocks(self) -> nn.ModuleList:
        return self.lm.model.layers

    @property
    def tied(self) -> bool:
        """True when the head is the embedding."""
        return self.lm.lm_head.weight is self.lm.model.embed_tokens.weight

    def named_masters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters by their Hugging Face names, tied ones once, in a fixed order."""
        for name, parameter in self.named_parameters():
            yield name.removeprefix("lm.").replace("._checkpoint_wrapped_module", ""), parameter

    @torch.no_grad()
    def full_tensors(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        """Every parameter gathered, one after the other, on the CPU as `dtype`. All ranks must walk through it."""
        for name, parameter in self.named_masters():
            yield name, gather(parameter.detach()).to(device="cpu", dtype=dtype or parameter.dtype)

    @torch.no_grad()
    def load_full_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Set every parameter from full tensors (each rank keeps its shard); names and shapes must match exactly."""
        mine = dict(self.named_masters())
        if mine.keys() != tensors.keys():
            differ = sorted(mine.keys() ^ tensors.keys())
            raise ValueError(f"weights don't fit the model: {len(differ)} names differ, e.g. {differ[0]!r}")
        for name, parameter in mine.items():
            if parameter.shape != tensors[name].shape:
                raise ValueError(f"weights don't fit the model: {name} is {tuple(parameter.shape)}, "
                                 f"got {tuple(tensors[name].shape)}")  # fmt: skip
            scatter_into(parameter, tensors[name])


def gather(tensor: Tensor) -> Tensor:
    """The whole of a sharded tensor; a collective when it is sharded."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def scatter_into(target: Tensor, full: Tensor) -> None:
    """Copy this rank's part of `full`, which every rank has, into `target`. No collective."""
    if isinstance(target, DTensor):
        from torch.distributed.tensor import distribute_tensor

        local = distribute_tensor(full.to(target.device), target.device_mesh, target.placements, src_data_rank=None)
        target.to_local().copy_(local.to_local())
    else:
        target.copy_(full)


def build_lm(config: Any, seed: int) -> Any:
    """A causal LM with fresh float32 weights from a transformers config; `seed` alone decides the weights."""
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=register())


def load_lm(model: str, revision: str = "") -> Any:
    """A causal LM from a Hugging Face folder or hub name, float32, on the CPU."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # it would end up in an actor's log
    if not Path(model).exists() and (model.startswith((".", "/")) or model.count("/") != 1):
        raise ModelError(f"no model folder {model!r}: wanted one with config.json, or a hub name OWNER/NAME")
    return AutoModelForCausalLM.from_pretrained(
        model, revision=revision or "main", dtype=torch.float32, attn_implementation=register()
    )


def prepare(
    lm: Any,
    *,
    device: torch.device,
    dtype: str = "float32",
    mesh: "dist.DeviceMesh | None" = None,
    activation_checkpointing: bool = False,
    compile_blocks: bool = False,
    trainable: bool = True,
) -> PolicyModel:
    """Puts a loaded model on its device and shards it over `mesh` (one dimension), block by block.

    A mesh is needed for several ranks and for bfloat16; without one the model is a plain float32 module.
    """
    if mesh is None and dtype != "float32":
        raise ValueError(f"compute in {dtype} over float32 masters needs a device mesh (of one rank or more)")
    model = PolicyModel(lm.to(device))
    model.compute_dtype = DTYPES[dtype]
    model.requires_grad_(trainable)
    model.train(trainable)
    if activation_checkpointing and trainable:
        lm.gradient_checkpointing_enable({"use_reentrant": False})
    if compile_blocks:
        for block in model.blocks:
            block.compile(dynamic=True)
    if mesh is not None:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        policy = MixedPrecisionPolicy(param_dtype=DTYPES[dtype], reduce_dtype=torch.float32, cast_forward_inputs=False)
        for block in model.blocks:
            fully_shard(block, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
        for module in [*model.blocks, model]:  # denominators are global, so the ranks' gradients add up
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    return model
