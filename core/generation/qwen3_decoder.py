"""A hand-written decode step for Qwen3 models in float32 on the CPU.

At a few million parameters the general forward spends most of its time between operations. Here a step is a dozen of
them a layer: fused projections, one normalisation and one rotation for queries and keys together, and attention of
every row over its own slot of one cache (in C where there is a compiler: `core.generation.native`). Slots are filled
from the left; a batch of rows is always the first slots, so that everything is a slice. A test holds it against the
transformers forward.

The model's own projection weights become views of the fused ones, so that loading weights into the model in place
changes both.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from transformers import PreTrainedModel

from core.generation import native
from core.generation.prefixes import Prefix

_ROPE_TYPES = ("default", "linear", "llama3", "yarn")
"""Those whose tables do not depend on the sequence."""
_FIRST_TOKENS = 128

Attend = Callable[[int, torch.Tensor], torch.Tensor]
"""(layer, fused projections [tokens, (heads + 2 kv heads) · dim]) -> [tokens, heads · dim]"""


def applies(model: PreTrainedModel) -> bool:
    """True for the models that this file is written for."""
    config = model.config
    if config.model_type != "qwen3" or model.device.type != "cpu" or model.dtype != torch.float32:
        return False
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    plain = set(getattr(config, "layer_types", None) or ["full_attention"]) == {"full_attention"}
    return (
        plain
        and config.hidden_act == "silu"
        and not config.attention_bias
        and rope.get("rope_type", "default") in _ROPE_TYPES
        and type(model).__name__ == "Qwen3ForCausalLM"
    )


class Qwen3Decoder:
    """The batch of rows and its cache; see `core.generation.decoders.Decoder`."""

    def __init__(self, model: Any, rows: int, context_tokens: int, *, threads: int = 1, compiled: bool = True) -> None:
        """Takes `model` over. `threads` is for the compiled part; `compiled` False leaves that out."""
        config = model.config
        self.hidden, self.eps = config.hidden_size, config.rms_norm_eps
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.inner = config.intermediate_size
        self.scale = self.dim**-0.5
        self.context_tokens = context_tokens
        self._layers = [_Layer(layer) for layer in model.model.layers]
        self._embed, self._norm, self._head = (
            model.model.embed_tokens.weight,
            model.model.norm.weight,
            model.lm_head.weight,
        )
        positions = torch.arange(context_tokens)[None]
        cos, sin = model.model.rotary_emb(torch.zeros(1, 1, self.hidden), positions)
        half = self.dim // 2
        self._cos, self._sin = cos[0], torch.cat([-sin[0][:, :half], sin[0][:, half:]], dim=-1)
        """[context, dim]; the sine carries the sign of the rotated half."""
        self._native: native.Attend | None = None
        if compiled:
            self._native = native.load(
                heads=self.heads,
                kv_heads=self.kv_heads,
                dim=self.dim,
                eps=self.eps,
                cos=self._cos,
                sin=self._sin,
                threads=threads,
            )
        self._mean = torch.full((self.hidden, 1), 1.0 / self.hidden)
        self._rows = rows
        self._count = 0
        self._lengths = torch.zeros(rows, dtype=torch.long)
        self._keys = [self._slots(_FIRST_TOKENS) for _ in self._layers]
        self._values = [self._slots(_FIRST_TOKENS) for _ in self._layers]

    def _slots(self, tokens: int) -> torch.Tensor:
        return torch.zeros(self._rows, self.kv_heads, min(tokens, self.context_tokens), self.dim)

    def add(self, prompts: Sequence[Sequence[int]], prefixes: Sequence[Prefix | None]) -> torch.Tensor:
        self._reserve(max(map(len, prompts)))
        first = self._count
        self._count += len(prompts)
        logits = self._head.new_empty(len(prompts), len(self._head))
        fresh = [row for row, prefix in enumerate(prefixes) if prefix is None]
        going_on = [row for row, prefix in enumerate(prefixes) if prefix is not None]
        for rows, fill in ((fresh, self._fill), (going_on, self._go_on)):
            if rows:
                slots = torch.tensor(rows) + first
                logits[rows] = fill([prompts[row] for row in rows], [prefixes[row] for row in rows], slots)
        return logits

    def _fill(
        self, prompts: Sequence[Sequence[int]], prefixes: Sequence[Prefix | None], slots: torch.Tensor
    ) -> torch.Tensor:
        """Whole prompts; one that comes several times is computed once."""
        unique = sorted(set(map(tuple, prompts)), key=len)
        place = {prompt: row for row, prompt in enumerate(unique)}
        source = torch.tensor([place[tuple(prompt)] for prompt in prompts])
        ids, lengths = _padded(unique)
        rows, width = ids.shape
        cos, sin = (table[:width].repeat(rows, 1)[:, None] for table in (self._cos, self._sin))

        def attend(layer: int, qkv: torch.Tensor) -> torch.Tensor:
            # Right-padded: a pad stands behind every real token, so causal attention alone hides it.
            q, k, v = (x.unflatten(0, (rows, width)).transpose(1, 2) for x in self._parts(layer, qkv, cos, sin))
            self._keys[layer][slots, :, :width] = k[source]
            self._values[layer][slots, :, :width] = v[source]
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.heads != self.kv_heads)
            return out.transpose(1, 2).reshape(rows * width, -1)

        hidden = self._forward(ids.flatten(), attend).unflatten(0, (rows, width))
        self._lengths[slots] = lengths[source]
        return self._logits(hidden[torch.arange(rows), lengths - 1])[source]

    def _go_on(
        self, prompts: Sequence[Sequence[int]], prefixes: Sequence[Prefix | None], slots: torch.Tensor
    ) -> torch.Tensor:
        """Prompts whose beginning is cached: only the rest is computed, against all of it."""
        for slot, prefix in zip(slots.tolist(), prefixes, strict=True):
            assert prefix is not None
            for cache, saved in zip((*self._keys, *self._values), prefix.state, strict=True):
                cache[slot, :, : prefix.tokens] = saved
        starts = torch.tensor([prefix.tokens for prefix in prefixes if prefix is not None])
        ids, lengths = _padded([prompt[start:] for prompt, start in zip(prompts, starts.tolist(), strict=True)])
        rows, width = ids.shape
        real = torch.arange(width) < lengths[:, None]
        row, column = real.nonzero(as_tuple=True)
        # Pads write nothing and nobody reads what they compute; they only need a position that exists.
        at = torch.where(real, starts[:, None] + torch.arange(width), 0)
        end = int((starts + lengths).max())
        mask = (torch.arange(end) <= at[:, :, None])[:, None]
        cos, sin = (table[at.flatten()][:, None] for table in (self._cos, self._sin))

        def attend(layer: int, qkv: torch.Tensor) -> torch.Tensor:
            q, k, v = (x.unflatten(0, (rows, width)) for x in self._parts(layer, qkv, cos, sin))
            keys, values = self._keys[layer], self._values[layer]
            keys[slots[row], :, at[row, column]] = k[row, column]
            values[slots[row], :, at[row, column]] = v[row, column]
            out = F.scaled_dot_product_attention(
                q.transpose(1, 2),
                keys[slots, :, :end],
                values[slots, :, :end],
                attn_mask=mask,
                enable_gqa=self.heads != self.kv_heads,
            )
            return out.transpose(1, 2).reshape(rows * width, -1)

        hidden = self._forward(ids.flatten(), attend).unflatten(0, (rows, width))
        self._lengths[slots] = starts + lengths
        return self._logits(hidden[torch.arange(rows), lengths - 1])

    def step(self, tokens: Sequence[int]) -> torch.Tensor:
        rows = self._count
        at = self._lengths[:rows]
        width = int(at.max()) + 1
        self._reserve(width)
        attend = self._compiled(at) if self._native else self._composed(at, width)
        hidden = self._forward(torch.tensor(tokens), attend)
        self._lengths[:rows] += 1
        return self._logits(hidden)

    def _compiled(self, at: torch.Tensor) -> Attend:
        def attend(layer: int, qkv: torch.Tensor) -> torch.Tensor:
            assert self._native is not None
            own = self._layers[layer]
            return self._native(qkv, own.q_norm.weight, own.k_norm.weight, self._keys[layer], self._values[layer], at)

        return attend

    def _composed(self, at: torch.Tensor, width: int) -> Attend:
        rows = len(at)
        row = torch.arange(rows)
        cos, sin = self._cos[at][:, None], self._sin[at][:, None]
        unseen = torch.arange(width) > at[:, None]
        mask = torch.zeros(rows, width).masked_fill_(unseen, float("-inf"))[:, None, None]

        def attend(layer: int, qkv: torch.Tensor) -> torch.Tensor:
            q, k, v = self._parts(layer, qkv, cos, sin)
            keys, values = self._keys[layer], self._values[layer]
            keys[row, :, at] = k
            values[row, :, at] = v
            # The query heads that share a key head stand where other code has the queries' time.
            q = q.reshape(rows, self.kv_heads, -1, self.dim)
            out = F.scaled_dot_product_attention(q, keys[:rows, :, :width], values[:rows, :, :width], attn_mask=mask)
            return out.reshape(rows, -1)

        return attend

    def save(self, row: int) -> list[torch.Tensor]:
        length = int(self._lengths[row])
        return [cache[row, :, :length].clone() for cache in (*self._keys, *self._values)]

    def keep(self, order: Sequence[int]) -> None:
        moves = [(to, source) for to, source in enumerate(order) if to != source]
        for to, source in moves:
            length = int(self._lengths[source])
            for cache in (*self._keys, *self._values):
                cache[to, :, :length] = cache[source, :, :length]
            self._lengths[to] = self._lengths[source]
        self._count = len(order)

    def _reserve(self, tokens: int) -> None:
        """Room for `tokens` columns: doubled when it runs out, so that short runs stay small."""
        have = self._keys[0].shape[2]
        if tokens <= have:
            return
        wanted = max(tokens, 2 * have)
        for caches in (self._keys, self._values):
            for layer, old in enumerate(caches):
                caches[layer] = self._slots(wanted)
                caches[layer][: self._count, :, :have] = old[: self._count]

    def _forward(self, ids: torch.Tensor, attend: Attend) -> torch.Tensor:
        """Final hidden states [tokens, hidden] of `ids` [tokens]."""
        x = self._embed[ids]
        for number, layer in enumerate(self._layers):
            qkv = F.linear(self._normed(x, layer.norm_in.weight), layer.qkv)
            x = torch.addmm(x, attend(number, qkv), layer.out.weight.t())
            gate_up = F.linear(self._normed(x, layer.norm_mlp.weight), layer.gate_up)
            gate, up = gate_up.split(self.inner, dim=1)
            x = torch.addmm(x, F.silu(gate).mul_(up), layer.down.weight.t())
        return x

    def _parts(
        self, layer: int, qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries [tokens, heads, dim], keys and values [tokens, kv heads, dim]: normed and turned; `cos` and `sin` are
        [tokens, 1, dim]."""
        own, both = self._layers[layer], self.heads + self.kv_heads
        qk = F.rms_norm(qkv[:, : both * self.dim].unflatten(1, (both, self.dim)), (self.dim,), None, self.eps)
        qk *= torch.cat([own.q_norm.weight.expand(self.heads, -1), own.k_norm.weight.expand(self.kv_heads, -1)])
        qk = torch.addcmul(qk * cos, qk.roll(self.dim // 2, -1), sin)
        return qk[:, : self.heads], qk[:, self.heads :], qkv[:, both * self.dim :].unflatten(1, (-1, self.dim))

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return F.linear(self._normed(hidden, self._norm), self._head)

    def _normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """RMS norm of x [tokens, hidden]; the mean of squares as a product, which is faster than a reduction."""
        return (x * torch.mm(x * x, self._mean).add_(self.eps).rsqrt_()).mul_(weight)


def _padded(prompts: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """(ids [rows, longest], 0 behind each one's end; lengths [rows])"""
    ids = torch.zeros(len(prompts), max(map(len, prompts)), dtype=torch.long)
    for row, prompt in enumerate(prompts):
        ids[row, : len(prompt)] = torch.tensor(prompt)
    return ids, torch.tensor([len(prompt) for prompt in prompts])


class _Layer:
    """One layer's weights: fused where the model has several, the model's own being views of them."""

    def __init__(self, layer: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.norm_in, self.norm_mlp = layer.input_layernorm, layer.post_attention_layernorm
        self.qkv = _fuse([attention.q_proj, attention.k_proj, attention.v_proj])
        self.gate_up = _fuse([mlp.gate_proj, mlp.up_proj])
        self.out, self.down = attention.o_proj, mlp.down_proj
        self.q_norm, self.k_norm = attention.q_norm, attention.k_norm


def _fuse(linears: list[torch.nn.Linear]) -> torch.Tensor:
    """The weights of `linears` stacked; theirs become views of the result."""
    fused = torch.cat([linear.weight.data for linear in linears])
    for linear, part in zip(linears, fused.split([linear.out_features for linear in linears]), strict=True):
        linear.weight.data = part
    return fused
