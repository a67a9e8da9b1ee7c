"""The engine over a transformers model: for the CPU, for tests, and wherever vLLM has no wheel.

    generate() ──inbox──▶ decode thread: swap weights? → drop cancelled → prefill newcomers → one token for every row
        ▲                                                                                              │
        └──────────────── futures, resolved on the caller's loop ◀──────── rows that ended ────────────┘

One thread owns model, cache and rows; the event loop only hands rows in and takes completions out. Between two decode
steps, and nowhere else, rows join and leave and weights change. Invariants:
- every sampled token is recorded with the version whose weights made its logits, and its log-prob under the
  distribution that it was drawn from; caches of running rows survive a swap, as they do in vLLM's `keep` mode;
- keys and values of ended rows serve prompts that go on from them, within one version only;
- what a request draws depends on its seed and its own distribution, not on what runs beside it;
- a request ends with a completion, PromptTooLong, cancellation, or the engine's own failure; none waits for ever.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging

from core.generation import qwen3_decoder
from core.generation.decoders import CachedDecoder, Decoder
from core.generation.engine import Completion, Sampling, room_for_answer
from core.generation.errors import EngineStopped, WrongWeights
from core.generation.prefixes import Prefixes
from core.generation.sampling import draw, uniforms
from core.generation.swap import read_weights, replace_weights

PREFILL_TOKENS = 8192
"""Most padded prompt tokens in one prefill, so that running rows don't stand still for long."""


class _Row:
    """One request on its way."""

    __slots__ = (
        "born",
        "budget",
        "cancelled",
        "future",
        "ids",
        "logprobs",
        "loop",
        "numbers",
        "prompt",
        "sampling",
        "stops",
        "versions",
    )

    def __init__(self, prompt: list[int], sampling: Sampling, budget: int) -> None:
        self.prompt = prompt
        self.sampling = sampling
        self.budget = budget
        self.stops = frozenset(sampling.stop_ids)
        self.numbers: Iterator[float] = uniforms(sampling.seed)
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.versions: list[int] = []
        self.cancelled = False
        self.born = -1
        """Version under which its prompt was read."""
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Completion] = self.loop.create_future()

    def completion(self, finish: str) -> Completion:
        return Completion(
            ids=np.array(self.ids, np.int32),
            logprobs=np.array(self.logprobs, np.float32),
            versions=np.array(self.versions, np.int32),
            finish=finish,
        )


class _Swap:
    """New weights on their way into the model."""

    def __init__(self, weights: dict[str, torch.Tensor], version: int, wanted: str) -> None:
        self.weights, self.version, self.wanted = weights, version, wanted
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[str] = self.loop.create_future()


class TransformersEngine:
    """See `core.generation.engine.Engine`."""

    def __init__(
        self,
        model: str | PreTrainedModel,
        *,
        version: int = 0,
        dtype: str = "float32",
        device: str = "cpu",
        batch_rows: int = 64,
        context_tokens: int = 0,
        threads: int = 0,
        prefix_tokens: int = 32_768,
        generic: bool = False,
        compiled: bool = True,
    ) -> None:
        """`model` is a folder, a hub name or a loaded model (which the engine then owns). `context_tokens` 0 takes the
        model's own limit; `threads` sets torch's number of threads for the whole process, 0 leaves it; `prefix_tokens`
        bounds what is kept of ended sequences for prompts that go on from them (0: nothing); `generic` keeps
        the transformers forward where a hand-written one would apply, `compiled` False the latter in torch alone."""
        self._compiled = compiled
        self._source = model
        self._dtype, self._device = dtype, device
        self._batch_rows, self._wanted_context, self._threads, self._generic = (
            batch_rows,
            context_tokens,
            threads,
            generic,
        )
        self._version = version
        self._context_tokens = context_tokens
        self._vocabulary = 0
        self._model: PreTrainedModel | None = None
        self._inbox: deque[_Row] = deque()
        self._swaps: deque[_Swap] = deque()
        self._rows: list[_Row] = []
        self._wake = threading.Condition()
        self._stopping = False
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._prefixes = Prefixes(prefix_tokens)
        self._tokens_total = self._prefilled_total = self._reused_total = 0
        self._busy_s = self._paused_s = 0.0

    @property
    def version(self) -> int:
        return self._version

    @property
    def context_tokens(self) -> int:
        return self._context_tokens

    @property
    def model(self) -> PreTrainedModel:
        """The model that runs; only to be read, and only between requests."""
        assert self._model is not None, "the engine is not started"
        return self._model

    async def start(self) -> None:
        """Load the model and start the decode thread. Raises what loading raises."""
        await asyncio.to_thread(self._load)
        self._thread = threading.Thread(target=self._run, name="decode", daemon=True)
        self._thread.start()

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
        ids = [int(i) for i in prompt_ids]
        room = room_for_answer(ids, self._context_tokens, self._vocabulary)
        row = _Row(ids, sampling, min(sampling.max_new_tokens, room))
        self._hand_in(self._inbox, row)
        try:
            return await row.future
        except asyncio.CancelledError:
            row.cancelled = True
            with self._wake:
                self._wake.notify()
            raise

    async def load_weights(self, source: str, version: int, fingerprint: str = "") -> str:
        """Raises ValueError, and changes nothing, when the source's tensors are not this model's; FileNotFoundError or
        TimeoutError when they can't be had."""
        base = self._source if isinstance(self._source, str) else ""
        weights = await asyncio.to_thread(read_weights, source, self.model, base=base)
        swap = _Swap(weights, version, fingerprint)
        self._hand_in(self._swaps, swap)
        return await swap.future

    async def stop(self) -> None:
        """Requests that are running or waiting fail with EngineStopped."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    def gauges(self) -> dict[str, float]:
        return {
            "running": float(len(self._rows)),
            "waiting": float(len(self._inbox)),
            "tokens_total": float(self._tokens_total),
            "prefilled_total": float(self._prefilled_total),
            "reused_total": float(self._reused_total),
            "busy_s": self._busy_s,
            "paused_s": self._paused_s,
        }

    def _hand_in(self, queue: deque, item: object) -> None:
        with self._wake:
            if self._thread is None or self._stopping or self._failure:
                raise EngineStopped("the engine is not running") from self._failure
            queue.append(item)
            self._wake.notify()

    def _load(self) -> None:
        model: Any = self._source
        if isinstance(model, str):
            logging.disable_progress_bar()
            model = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, self._dtype))
        self._model = model.to(self._device).eval().requires_grad_(False)
        assert self._model is not None
        told = self._model.config.get_text_config(decoder=True)  # a part of a multimodal model's config
        limit = int(getattr(told, "max_position_embeddings", 0)) or self._wanted_context
        if not limit:
            raise ValueError("the model's config names no context length: set model.context_tokens")
        self._context_tokens = min(limit, self._wanted_context or limit)
        self._vocabulary = int(cast(torch.nn.Embedding, self._model.get_input_embeddings()).num_embeddings)

    # ------------------------------------------------------------------------------------------- decode thread

    def _run(self) -> None:
        try:
            if self._threads:
                torch.set_num_threads(self._threads)
            with torch.inference_mode():
                self._decode()
        except BaseException as failure:
            self._failure = failure
            raise
        finally:
            with self._wake:
                self._stopping = True
                left: list[_Row | _Swap] = [*self._rows, *self._inbox, *self._swaps]
                self._rows.clear()
                self._inbox.clear()
                self._swaps.clear()
            error = EngineStopped("the engine stopped before the request ended")
            error.__cause__ = self._failure
            for waiter in left:
                _tell(waiter.loop, [(waiter.future, error)])

    def _decode(self) -> None:
        decoder = self._decoder()
        while True:
            with self._wake:
                while not (self._stopping or self._rows or self._inbox or self._swaps):
                    self._wake.wait()
                if self._stopping:
                    return
            while self._swaps:
                self._swap(self._swaps[0])
                if self._failure:
                    return
                self._swaps.popleft()
            began = time.perf_counter()
            self._leave(decoder, [])
            self._admit(decoder)
            if self._rows:
                self._sample(decoder, decoder.step([row.ids[-1] for row in self._rows]), 0)
            self._busy_s += time.perf_counter() - began

    def _swap(self, swap: _Swap) -> None:
        began = time.perf_counter()
        fingerprint = replace_weights(self.model, swap.weights)
        if swap.wanted and fingerprint != swap.wanted:
            self._failure = WrongWeights(swap.version, swap.wanted, fingerprint)
            _tell(swap.loop, [(swap.future, self._failure)])
            return
        self._version = swap.version
        self._prefixes.clear()
        self._paused_s += time.perf_counter() - began
        _tell(swap.loop, [(swap.future, fingerprint)])

    def _decoder(self) -> Decoder:
        model = self.model
        if not self._generic and qwen3_decoder.applies(model):
            return qwen3_decoder.Qwen3Decoder(
                model, self._batch_rows, self._context_tokens, threads=torch.get_num_threads(), compiled=self._compiled
            )
        return CachedDecoder(model)

    def _admit(self, decoder: Decoder) -> None:
        """Prefill newcomers while there are slots, longest prompt times rows bounded; each draws its first token."""
        newcomers: list[_Row] = []
        longest = 0
        with self._wake:
            while self._inbox and len(self._rows) + len(newcomers) < self._batch_rows:
                row = self._inbox[0]
                longest = max(longest, len(row.prompt))
                if newcomers and longest * (len(newcomers) + 1) > PREFILL_TOKENS:
                    break
                self._inbox.popleft()
                if not row.cancelled:
                    newcomers.append(row)
        if newcomers:
            first = len(self._rows)
            for row in newcomers:
                row.born = self._version
            self._rows += newcomers
            prefixes = [self._prefixes.find(row.prompt) for row in newcomers]
            self._prefilled_total += sum(len(row.prompt) for row in newcomers)
            self._reused_total += sum(prefix.tokens for prefix in prefixes if prefix)
            self._sample(decoder, decoder.add([row.prompt for row in newcomers], prefixes), first)

    def _sample(self, decoder: Decoder, logits: torch.Tensor, first: int) -> None:
        """Draw a token for every row from `first` on; rows that end with it leave."""
        rows = self._rows[first:]
        ids, logprobs = draw(
            logits,
            [row.sampling.temperature for row in rows],
            [row.sampling.top_k for row in rows],
            [row.sampling.top_p for row in rows],
            [next(row.numbers) for row in rows],
        )
        version = self._version
        ended: list[tuple[int, str]] = []
        for at, (row, token, logprob) in enumerate(zip(rows, ids, logprobs, strict=True), start=first):
            row.ids.append(token)
            row.logprobs.append(logprob)
            row.versions.append(version)
            if token in row.stops:
                ended.append((at, "stop"))
            elif len(row.ids) >= row.budget:
                ended.append((at, "length"))
        self._tokens_total += len(rows)
        if ended:
            self._leave(decoder, ended)

    def _leave(self, decoder: Decoder, ended: list[tuple[int, str]]) -> None:
        """Rows that ended, and cancelled ones, give their slots back: the last rows move into the holes."""
        gone = {at for at, _ in ended} | {at for at, row in enumerate(self._rows) if row.cancelled}
        if not gone:
            return
        results: dict[asyncio.AbstractEventLoop, list] = {}
        for at, finish in ended:
            row = self._rows[at]
            results.setdefault(row.loop, []).append((row.future, row.completion(finish)))
            if self._prefixes.max_tokens and row.born == self._version:
                state = decoder.save(at)
                if state is not None:
                    # The last token was drawn, but never fed: it has no keys and values.
                    self._prefixes.put([*row.prompt, *row.ids[:-1]], state)
        count = len(self._rows) - len(gone)
        movers = iter([at for at in range(count, len(self._rows)) if at not in gone])
        order = [next(movers) if at in gone else at for at in range(count)]
        self._rows = [self._rows[at] for at in order]
        decoder.keep(order)
        for loop, answers in results.items():
            _tell(loop, answers)


def _tell(loop: asyncio.AbstractEventLoop, answers: list[tuple[asyncio.Future, object]]) -> None:
    """Resolve futures on their own loop; one that is closed has nobody waiting."""

    def resolve() -> None:
        for future, answer in answers:
            if future.done():
                continue
            if isinstance(answer, BaseException):
                future.set_exception(answer)
            else:
                future.set_result(answer)

    if not loop.is_closed():
        loop.call_soon_threadsafe(resolve)
