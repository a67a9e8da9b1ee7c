"""The policy as the learner holds it: a transformers causal LM that answers with log-probs instead of logits.

    model = load_policy("policies/tiny", device="cpu")
    logprobs, entropies = model(packed)                  # [trained tokens] each, through the chunked head

Everything runs inside `PolicyModel.forward`, so that the root's FSDP hooks gather the embedding, the last norm and the
head before they are used and reduce their gradients after. Master weights are float32; with `dtype = "bfloat16"` FSDP2
casts what it gathers and reduces gradients in float32. A single rank needs no FSDP2 (`core.training.masters`).
"""

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from core.training import adapters, compiled
from core.training.attention import attention_kwargs, register
from core.training.fits import misfit
from core.training.joined import join_products
from core.training.logprobs import CHUNK_TOKENS, TokenLoss, chunked_logprobs, fused_loss
from core.training.masters import Masters
from core.training.packing import Packed
from core.training.recompute import Level, checkpoint_block
from core.weights.adapters import Part, merged

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class ModelError(ValueError):
    """A model that can't be used; the text is one line for the person who named it."""


class PolicyModel(nn.Module):
    """Wraps a transformers causal LM (`lm`) without adding parameters."""

    def __init__(self, lm: Any) -> None:
        super().__init__()
        self.lm: Any = lm
        self.compute_dtype = torch.float32
        self.attention = "auto"
        self.chunk_tokens = CHUNK_TOKENS
        self.cache_gib = 0.0
        self.temperature = 1.0
        self.masters: Masters | None = None

    def hidden(self, packed: Packed) -> Tensor:
        """Hidden states after the last norm at `packed.picked`, compute type [trained tokens, width]."""
        out = self.lm.model(
            input_ids=packed.ids[None],
            position_ids=packed.position_ids[None],
            use_cache=False,
            **attention_kwargs(packed.lengths, packed.cu_seqlens, self.compute_dtype, self.attention, packed.split),
        ).last_hidden_state[0]
        return out.index_select(0, packed.picked)

    def forward(
        self, packed: Packed, want_entropy: bool = True, token_loss: TokenLoss | None = None
    ) -> tuple[Tensor, ...]:
        """(log-probs, entropies), float32 [trained tokens], of `packed.targets` at `packed.picked`.

        With `token_loss` (`core.training.logprobs`): (loss, log-probs, entropies), gradient through the loss.
        """
        hidden = self.hidden(packed)
        weight = self.lm.lm_head.weight
        if token_loss is not None:
            return fused_loss(
                hidden, weight, packed.targets, token_loss, chunk_tokens=self.chunk_tokens, want_entropy=want_entropy,
                temperature=self.temperature,
            )  # fmt: skip
        return chunked_logprobs(
            hidden, weight, packed.targets, chunk_tokens=self.chunk_tokens, want_entropy=want_entropy,
            cache_gib=self.cache_gib, temperature=self.temperature,
        )  # fmt: skip

    @property
    def blocks(self) -> nn.ModuleList:
        return self.lm.model.layers

    @property
    def tied(self) -> bool:
        """True when the head is the embedding."""
        return self.lm.lm_head.weight is self.lm.model.embed_tokens.weight

    @property
    def has_adapters(self) -> bool:
        return next(adapters.adapted(self), None) is not None

    def named_masters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """What the optimizer trains, by Hugging Face names, tied ones once, in a fixed order."""
        for name, parameter in self.named_parameters():
            if parameter.requires_grad:
                master = parameter if self.masters is None else self.masters.of(parameter)
                yield name.removeprefix("lm."), master

    def after_backward(self) -> None:
        """To be called after every backward pass."""
        if self.masters is not None:
            self.masters.collect()

    def after_update(self) -> None:
        """To be called when masters have changed."""
        if self.masters is not None:
            self.masters.refresh()

    @torch.no_grad()
    def full_tensors(
        self, dtype: torch.dtype | None = None, *, device: torch.device | str | None = "cpu", own: bool = False,
        parts: list[Part] | None = None,
    ) -> Iterator[tuple[str, Tensor]]:  # fmt: skip
        """The policy, adapters added in: every parameter gathered, one after the other, on `device` (None: where it
        is) as `dtype` (float32 without). own: none of them is a master's memory, so that they outlive the next step.
        parts: adapters are put in it as they are added in, owned likewise. All ranks must walk through it."""
        layers = dict(adapters.adapted(self))
        for name, parameter in self.named_parameters():
            if name.startswith("lm.") and ".lora_" not in name:
                master = parameter if self.masters is None else self.masters.of(parameter)
                value = gather(adapters.base_weight(master))
                layer = layers.get(name.rpartition(".base_layer.weight")[0])
                name = name.removeprefix("lm.").replace(".base_layer.", ".")
                if layer is not None:
                    part = Part(name, *self._adapter(layer), layer.scaling["default"])
                    value = merged(value, part, dtype or torch.float32)
                    if parts is not None:
                        parts.append(part._replace(a=part.a.clone(), b=part.b.clone()) if own else part)
                value = value.to(device=device, dtype=dtype or torch.float32)
                yield name, value.clone() if own and _same_memory(value, master) else value

    def _adapter(self, layer: Any) -> tuple[Tensor, Tensor]:
        parts = (layer.lora_A["default"].weight, layer.lora_B["default"].weight)
        a, b = (gather((p if self.masters is None else self.masters.of(p)).detach()) for p in parts)
        return a, b

    @torch.no_grad()
    def load_full_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Set every master from full tensors (each rank keeps its shard); names and shapes must match exactly."""
        mine = dict(self.named_masters())
        if mine.keys() != tensors.keys():
            differ = sorted(mine.keys() ^ tensors.keys())
            raise ValueError(f"weights don't fit the model: {len(differ)} names differ, e.g. {differ[0]!r}")
        for name, parameter in mine.items():
            if parameter.shape != tensors[name].shape:
                raise ValueError(f"weights don't fit the model: {name} is {tuple(parameter.shape)}, "
                                 f"got {tuple(tensors[name].shape)}")  # fmt: skip
            scatter_into(parameter, tensors[name])
        self.after_update()


def gather(tensor: Tensor) -> Tensor:
    """The whole of a sharded tensor; a collective when it is sharded."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _same_memory(tensor: Tensor, master: Tensor) -> bool:
    local = master.to_local() if isinstance(master, DTensor) else master
    return tensor.untyped_storage().data_ptr() == local.untyped_storage().data_ptr()


def scatter_into(target: Tensor, full: Tensor) -> None:
    """Copy this rank's part of `full`, which every rank has, into `target`. No collective."""
    if isinstance(target, DTensor):
        from torch.distributed.tensor import distribute_tensor

        local = distribute_tensor(full.to(target.device), target.device_mesh, target.placements, src_data_rank=None)
        target.to_local().copy_(local.to_local())
    else:
        target.copy_(full)


def load_adamw(adamw: torch.optim.Optimizer, masters: Iterator[tuple[str, Any]], state: dict[str, Tensor]) -> None:
    """Sets the state of `adamw` from whole tensors by `<parameter>.<state>`; a parameter without any starts afresh."""
    adamw.state.clear()
    for name, parameter in masters:
        if f"{name}.step" not in state:  # before the first update
            continue
        of_one: dict[str, Tensor] = {}
        for key in ("exp_avg", "exp_avg_sq"):
            of_one[key] = torch.zeros_like(parameter)
            scatter_into(of_one[key], state[f"{name}.{key}"])
        of_one["step"] = state[f"{name}.step"].to(parameter.device).clone()
        adamw.state[parameter] = of_one


def refuse_other_kind(optimizer: Collection[str], adapters: Iterable[str], critic: Iterable[str]) -> None:
    """Raises ValueError, before anything is loaded, when a checkpoint lacks what these settings train beside the
    policy, or holds what they would leave untrained. adapters, critic: names of their parameters; none: there are
    none."""
    held = {name.removesuffix(".value") for name in optimizer if name.endswith(".value")}
    of_critic = {name for name in held if name.startswith("critic.")}
    for what, setting, wanted, found in (
        ("adapter", "lora_rank and lora_targets", set(adapters), held - of_critic),
        ("critic", "advantage = 'gae'", {f"critic.{name}" for name in critic}, of_critic),
    ):
        if odd := sorted(wanted ^ found):
            raise ValueError(
                f"the checkpoint {'lacks' if odd[0] in wanted else 'holds'} the {what} {odd[0]!r}: it was written with "
                f"other settings than {setting}; continue with its own, or start a run of its weights"
            )


def build_lm(config: Any, seed: int) -> Any:
    """A causal LM with fresh float32 weights from a transformers config; `seed` alone decides the weights."""
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=register())


def load_lm(model: str, revision: str = "", quantization: Any = None) -> Any:
    """A causal LM from a Hugging Face folder or hub name, float32, on the CPU; quantization: a transformers config."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # it would end up in an actor's log
    if not Path(model).exists() and (model.startswith((".", "/")) or model.count("/") != 1):
        raise ModelError(f"no model folder {model!r}: wanted one with config.json, or a hub name OWNER/NAME")
    try:
        lm = AutoModelForCausalLM.from_pretrained(
            model, revision=revision or "main", dtype=torch.float32, attn_implementation=register(),
            quantization_config=quantization,
        )  # fmt: skip
    except MemoryError:
        raise
    except Exception as error:  # what no class can be made of ends as any of them: also ZeroDivisionError
        if not Path(model).is_dir():  # the hub may be out of reach for a while
            raise
        words = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise ModelError(f"model {model!r} can't be loaded: {words}; look at its config.json") from error
    if not hasattr(getattr(lm, "model", None), "layers"):
        raise ModelError(f"model {model!r} is a {type(lm).__name__}, which has no blocks at model.layers: wanted "
                         f"a language model alone; of a multimodal one save the text part by itself")  # fmt: skip
    if not list(lm.model.layers):
        raise ModelError(f"model {model!r} has no blocks at all: look at num_hidden_layers in its config.json")
    if why := misfit(lm):
        raise ModelError(f"model {model!r} ({type(lm).__name__}) can't be trained here: {why}")
    return lm


def prepare(
    lm: Any,
    *,
    device: torch.device,
    dtype: str = "float32",
    mesh: "dist.DeviceMesh | None" = None,
    checkpointing: Level = "none",
    compile_blocks: bool = False,
    static_shapes: bool = False,
    trainable: bool = True,
    cpu_offload: bool = False,
    dropout: bool = False,
    joined: bool = False,
    kind: "type[PolicyModel] | None" = None,
) -> PolicyModel:
    """Puts a loaded model on its device and, with a mesh (of one dimension), shards it block by block.

    trainable: all that requires a gradient is trained; False freezes everything. Without a mesh the model is a plain
    module, with masters of its own when it computes in bfloat16. static_shapes: compiled blocks are made for every
    size that comes, instead of for any size after the second. dropout: blocks draw random numbers. joined: products of
    one input are one product (`core.training.joined`). kind: wrapper.
    """
    model = (kind or PolicyModel)(lm)
    if not getattr(lm, "is_quantized", False):
        model.to(device)
    model.compute_dtype = DTYPES[dtype]
    if not trainable:
        model.requires_grad_(False)
    model.train(trainable)
    if joined:
        for block in model.blocks:
            join_products(block)
    if trainable:
        for block in model.blocks:
            checkpoint_block(block, checkpointing, random=dropout)
    if compile_blocks:
        compiled.compile_blocks(model.blocks, static_shapes=static_shapes)
    if mesh is not None:
        shard(model, mesh, DTYPES[dtype], cpu_offload=cpu_offload)
    elif dtype != "float32":
        model.masters = Masters(model, DTYPES[dtype])
    return model


def shard(model: PolicyModel, mesh: "dist.DeviceMesh", dtype: torch.dtype, *, cpu_offload: bool = False) -> None:
    """FSDP2 over `mesh`, in place: every block, then the rest. Gradients of the ranks are summed."""
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    offload = CPUOffloadPolicy(pin_memory=torch.cuda.is_available()) if cpu_offload else OffloadPolicy()
    for module in [*model.blocks, model]:
        fully_shard(module, mesh=mesh, mp_policy=policy, offload_policy=offload)
    for module in [*model.blocks, model]:  # denominators are global, so the ranks' gradients add up
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)
