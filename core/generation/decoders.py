"""Decoders: a batch of rows with their key/value caches, between the engine's bookkeeping and a model's forward.

    add(prompts)   prefill some rows together; they join at the end of the batch
    step(tokens)   one token for every row of the batch
    save(row)      a row's keys and values, for a prompt that goes on from it
    keep(order)    the batch becomes the rows named, in that order; the others give their memory back

A decoder knows nothing of requests, sampling or versions. Weights may change between two calls; caches stay as they
are, so running rows go on. `CachedDecoder` works with any transformers model that caches keys and values;
`core.generation.qwen3_decoder` is the hand-written one for small Qwen3 models on the CPU.
"""

import inspect
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from transformers import DynamicCache, PreTrainedModel

from core.generation.prefixes import Prefix


class Decoder(Protocol):
    def add(self, prompts: Sequence[Sequence[int]], prefixes: Sequence[Prefix | None]) -> torch.Tensor:
        """Prefill `prompts`, each behind its prefix where there is one; answers with the logits after each one's last
        token [prompts, vocab]."""
        ...

    def step(self, tokens: Sequence[int]) -> torch.Tensor:
        """Feed one token per row; answers with the next logits [rows, vocab]."""
        ...

    def save(self, row: int) -> Any | None:
        """A copy of what `add` needs to go on from this row's cached tokens; None where a decoder can't."""
        ...

    def keep(self, order: Sequence[int]) -> None:
        """Rows `order` of the batch stay, in that order. Where `order[j] != j`, order[j] > j and order[j] is not
        needed at another place: rows move to the front only."""
        ...


class CachedDecoder:
    """Any model with the transformers cache interface: rows left-padded in one DynamicCache.

    Prompts are prefilled right-padded under plain causal attention (a pad is behind every real token, so nothing
    sees it), then moved to the right end of the batch's columns.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        # Renamed within transformers 5; the old name warns at every call of the newer ones.
        newer = "cache" in inspect.signature(inspect.unwrap(type(model).forward)).parameters
        self._cache_name = "cache" if newer else "past_key_values"
        self._cache: DynamicCache | None = None
        self._lengths: list[int] = []
        """Cached tokens per row; a row's are the last ones of the columns."""

    def add(self, prompts: Sequence[Sequence[int]], prefixes: Sequence[Prefix | None]) -> torch.Tensor:
        lengths = [len(prompt) for prompt in prompts]
        width = max(lengths)
        ids = torch.zeros(len(prompts), width, dtype=torch.long)
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt)] = torch.as_tensor(prompt)
        lasts = sorted({length - 1 for length in lengths})
        device = self.model.device
        cache = DynamicCache()
        out = self.model(
            input_ids=ids.to(device),
            use_cache=True,
            logits_to_keep=torch.tensor(lasts, device=device),
            **{self._cache_name: cache},
        )
        self._join(_layers(cache, width, self.model), lengths)
        picked = torch.tensor([lasts.index(length - 1) for length in lengths], device=device)
        return out.logits[torch.arange(len(prompts), device=device), picked]

    def step(self, tokens: Sequence[int]) -> torch.Tensor:
        assert self._cache is not None
        device = self.model.device
        width = max(self._lengths) + 1
        lengths = torch.tensor(self._lengths, device=device)
        mask = (torch.arange(width, device=device) >= width - 1 - lengths[:, None]).long()
        out = self.model(
            input_ids=torch.tensor(tokens, device=device)[:, None],
            attention_mask=mask,
            position_ids=lengths[:, None],
            use_cache=True,
            **{self._cache_name: self._cache},
        )
        self._lengths = [length + 1 for length in self._lengths]
        return out.logits[:, -1]

    def save(self, row: int) -> None:
        return None

    def keep(self, order: Sequence[int]) -> None:
        self._lengths = [self._lengths[row] for row in order]
        if not order:
            self._cache = None
            return
        assert self._cache is not None
        width = max(self._lengths)
        index = torch.tensor(order, device=self.model.device)
        self._cache = _cache_of(
            [
                (k.index_select(0, index)[:, :, -width:], v.index_select(0, index)[:, :, -width:])
                for k, v in self._pairs()
            ]
        )

    def _pairs(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        layers: list[Any] = [] if self._cache is None else list(self._cache.layers)
        return [(layer.keys, layer.values) for layer in layers]

    def _join(self, fresh: list[tuple[torch.Tensor, torch.Tensor]], lengths: list[int]) -> None:
        """Right-padded `fresh` rows behind the batch's rows, all flush right."""
        old, rows = self._pairs(), len(self._lengths)
        self._lengths = self._lengths + lengths
        width = max(self._lengths)
        merged = []
        for layer, pair in enumerate(fresh):
            both = []
            for part, new in enumerate(pair):
                shape = (len(self._lengths), new.shape[1], width, new.shape[3])
                whole = new.new_zeros(shape)
                if rows:
                    whole[:rows, :, width - old[layer][part].shape[2] :] = old[layer][part]
                for row, length in enumerate(lengths):
                    whole[rows + row, :, width - length :] = new[row, :, :length]
                both.append(whole)
            merged.append((both[0], both[1]))
        self._cache = _cache_of(merged)


def _cache_of(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> DynamicCache:
    cache = DynamicCache()
    for layer, (keys, values) in enumerate(pairs):
        cache.update(keys, values, layer)
    return cache


def _layers(cache: DynamicCache, width: int, model: PreTrainedModel) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(keys, values) [rows, heads, width, head_dim] per layer; refuses models that keep another state."""
    layers: list[Any] = list(cache.layers)
    if not layers or any(getattr(layer, "keys", None) is None or layer.keys.shape[-2] != width for layer in layers):
        raise ValueError(
            f"the transformers engine needs a model that caches keys and values for every position; "
            f"{type(model).__name__} keeps another state: use rollout.engine = 'vllm'"
        )
    return [(layer.keys, layer.values) for layer in layers]
