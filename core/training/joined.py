"""Products of one input with several weights, as one product with the weights behind each other.

    q, k, v of attention    [tokens, width] x [width, 2048 + 1024 + 1024] instead of three products
    gate, up of the MLP     [tokens, width] x [width, 2 · 3072] instead of two

With small models a weight's gradient has too few tiles to fill a GPU (1024 x 1024 is 32 of 128 x 256, an H100 has 132
processors), and the input's gradient is a sum of products that go through memory one by one; joined it is one product.
Parameters stay as they are, under their own names: weights are put behind each other in every pass, a copy of some
megabytes a block. Modules with anything but plain linear layers (adapters, 4 bits) are left alone.
"""

import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from core.training.attention import packed_attention

ATTENTIONS = ("LlamaAttention", "Qwen2Attention", "Qwen3Attention")
"""Classes of transformers whose forward is what `_Attention` writes down, but for the products."""


def join_products(block: nn.Module) -> int:
    """Joins the products in `block`, in place; returns how many were made of several."""
    made = 0
    for module in block.modules():
        if isinstance(module, (_MLP, _Attention)):
            continue
        if _plain(module, "gate_proj", "up_proj") and hasattr(module, "act_fn") and hasattr(module, "down_proj"):
            module.__class__ = _with(_MLP, type(module))  # type: ignore[arg-type]
            made += 1
        elif type(module).__name__ in ATTENTIONS and _plain(module, "q_proj", "k_proj", "v_proj"):
            module.__class__ = _with(_Attention, type(module))  # type: ignore[arg-type]
            made += 1
    return made


@cache
def _with(joined: type, original: type) -> type:
    """A class for all modules of a kind: a forward of each module's own would be a graph of its own when compiled."""
    return type(f"Joined{original.__name__}", (joined, original), {"__module__": original.__module__})


def _plain(module: nn.Module, *names: str) -> bool:
    layers: list[Any] = [getattr(module, name, None) for name in names]
    return all(type(x) is nn.Linear for x in layers) and len({x.bias is None for x in layers}) == 1


def product(x: Tensor, layers: Sequence[nn.Linear]) -> tuple[Tensor, ...]:
    """[layer(x) for layer in layers], views of one tensor."""
    weight = torch.cat([layer.weight for layer in layers])
    bias = None if layers[0].bias is None else torch.cat([layer.bias for layer in layers])
    return F.linear(x, weight, bias).split([layer.out_features for layer in layers], dim=-1)


class _MLP:
    def forward(self: Any, x: Tensor) -> Tensor:
        gate, up = product(x, (self.gate_proj, self.up_proj))
        return self.down_proj(self.act_fn(gate) * up)


class _Attention:
    def forward(
        self: Any, hidden_states: Tensor, position_embeddings: Any = None, attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:  # fmt: skip
        if kwargs.get("packed_key") is None and kwargs.get("packed_rows") is None:  # generation, with its cache
            return super().forward(  # type: ignore[misc]
                hidden_states, position_embeddings=position_embeddings, attention_mask=attention_mask, **kwargs
            )
        rotate = sys.modules[type(self).__module__].apply_rotary_pos_emb
        shape = hidden_states.shape[:-1]
        q, k, v = (
            x.view(*shape, -1, self.head_dim) for x in product(hidden_states, (self.q_proj, self.k_proj, self.v_proj))
        )
        if hasattr(self, "q_norm"):
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        q, k = rotate(q, k, *position_embeddings)
        out, _ = packed_attention(
            self, q, k, v, attention_mask, scaling=self.scaling,
            dropout=self.attention_dropout if self.training else 0.0,
            sliding_window=getattr(self, "sliding_window", None), **kwargs,
        )  # fmt: skip
        return self.o_proj(out.reshape(*shape, -1)), None
