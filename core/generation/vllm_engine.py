"""The engine on vLLM: continuous batching over hundreds of episodes, weights changed while sequences run.

    generate() ─▶ gate ─▶ AsyncLLM.add_request ─▶ ids, log-probs ─▶ versions token by token ─▶ Completion
    load_weights():  stage beside generation ─▶ shut the gate ─▶ pause(keep) ─▶ count tokens ─▶ swap ─▶ prove ─▶ resume

AsyncLLM lives on the caller's loop, the engine core and its workers in processes of their own. Invariants:
- nothing is tokenized: ids go in, ids and the log-probs of the distribution sampled from come out;
- a request is the engine's or is held at the gate, never in between, when weights change; so each token that stands at
  the pause was sampled by the old weights, each later one by the new;
- a prefix is found in the cache only by requests that began under the same loaded weights (`cache_salt`);
- weights are received and checked beside generation; once the swap has begun it ends well, or the engine is given up;
- nothing is sampled by weights before they have the fingerprint that was asked for: it is taken inside the pause;
- nothing waits without a deadline. A core that dies, or hangs (`vllm_watch`), is started again with the weights it had,
  at most `restarts` times, and its requests are asked for again; what can't be had again ends in EngineStopped.
"""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import structlog

from core.generation import vllm_compat as compat
from core.generation import vllm_start as start
from core.generation.engine import Completion, Sampling, room_for_answer
from core.generation.errors import EngineStopped, WeightsNotReceived, WrongWeights
from core.generation.vllm_layout import Spec, join
from core.generation.vllm_start import VLLMSettings
from core.generation.vllm_versions import Running
from core.generation.vllm_watch import end_when_silent
from core.to_the_end import to_the_end

log = structlog.get_logger()

_ERRORS: dict[str, type[Exception]] = {
    "FileNotFoundError": FileNotFoundError, "ValueError": ValueError, "TimeoutError": TimeoutError,
}  # fmt: skip
_STAGE_POLL_S = 0.02
_DEATH_POLL_S = 0.1


class VLLMEngine:
    """See `core.generation.engine.Engine`."""

    def __init__(
        self, model: str, *, version: int = 0, dtype: str = "bfloat16", context_tokens: int = 0,
        settings: VLLMSettings | None = None,
    ) -> None:  # fmt: skip
        """`model` is a folder or a hub name; `context_tokens` 0 takes the model's own limit."""
        self._model, self._dtype, self._context_tokens, self._vocabulary = model, dtype, context_tokens, 0
        self._settings = settings or VLLMSettings()
        self._core: Any = None
        self._watch: asyncio.Task[None] | None = None
        self._version = version
        self._source: str | None = None
        """Where the weights in use came from; None: the model's own."""
        self._fingerprint = ""
        self._loads = itertools.count(1)
        self._salt = "0"
        self._gate = asyncio.Event()
        self._submitting = 0
        self._running: dict[str, Running] = {}
        self._numbers = itertools.count()
        self._ticket = 0
        self._update = asyncio.Lock()
        self._restarted = 0
        self._failure: BaseException | None = None
        self._tokens_total = 0
        self._busy_s = self._paused_s = self._staged_s = 0.0
        self._busy_since: float | None = None
        self.started_s: dict[str, float] = {}
        """Seconds of the last start: `build` the model and its graphs, `warm` what samples."""
        self.pauses: list[float] = []
        """Seconds of each pause for new weights."""
        self.spans_differed = 0
        """Completions whose versions, as vLLM reports them, were not those counted at the pauses."""

    @property
    def version(self) -> int:
        return self._version

    @property
    def context_tokens(self) -> int:
        return self._context_tokens

    # -------------------------------------------------------------------------------------------------- life

    async def start(self) -> None:
        """Load the model. Raises ImportError without a vLLM that fits, and what loading raises."""
        await asyncio.to_thread(compat.version)  # which imports vLLM
        await self._build()
        self._gate.set()

    async def _build(self) -> None:
        s = self._settings
        options = start.options(self._model, dtype=self._dtype, context_tokens=self._context_tokens, settings=s)
        began = time.perf_counter()
        # In a thread: it takes up to minutes. vLLM binds itself to a loop at its first request.
        core = await asyncio.to_thread(compat.build, options)
        if self._failure is not None:
            await asyncio.to_thread(core.shutdown)
            raise EngineStopped("the engine was stopped while it started") from self._failure
        self._core = core
        compat.watch_outputs(core)
        self._context_tokens = int(core.model_config.max_model_len)
        self._vocabulary = int(core.model_config.get_vocab_size())
        await self._bounded(compat.name_weights(self._core, str(self._version)), "naming its weights")
        built = time.perf_counter()
        warming = start.warm(self._core, context_tokens=self._context_tokens, max_sequences=s.max_sequences)
        await self._bounded(warming, "its warm-up", s.stage_timeout_s)
        self._alive()
        self._watch = asyncio.create_task(
            end_when_silent(core, lambda: bool(self._running) and self._gate.is_set(), s.silent_timeout_s)
        )
        self.started_s = {"build": round(built - began, 2), "warm": round(time.perf_counter() - built, 2)}
        log.info("engine started", **{f"{name}_s": seconds for name, seconds in self.started_s.items()})

    async def stop(self) -> None:
        """Requests that are running or waiting fail with EngineStopped."""
        self._failure = self._failure or EngineStopped("the engine was stopped")
        self._gate.set()
        self._watch_none()
        if self._core is not None:
            core, self._core = self._core, None
            told = EngineStopped("the engine stopped before the request ended")
            told.__cause__ = self._failure
            compat.fail_requests(core, told)
            await asyncio.to_thread(core.shutdown)

    def _watch_none(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    async def check(self) -> None:
        """Raises EngineStopped unless the core and its workers answer within `swap_timeout_s`."""
        core = self._alive()
        try:
            await self._bounded(core.check_health(), "a health check")
            await self._bounded(core.collective_rpc("check_health"), "a health check of its workers")
        except TimeoutError as error:
            raise EngineStopped(str(error)) from error
        except compat.dead_errors() as error:
            raise EngineStopped(f"vLLM's core is dead: {error}") from error

    def gauges(self) -> dict[str, float]:
        now = time.perf_counter()
        busy = self._busy_s + (now - self._busy_since if self._busy_since is not None else 0.0)
        return {
            "running": float(len(self._running)),
            "waiting": float(self._submitting),
            "tokens_total": float(self._tokens_total),
            "busy_s": busy,
            "paused_s": self._paused_s,
            "staged_s": self._staged_s,
            "restarts": float(self._restarted),
        }

    def _alive(self) -> Any:
        if self._core is None or self._failure is not None:
            raise EngineStopped("the engine is not running") from self._failure
        return self._core

    async def _bounded(self, call: Awaitable[Any], what: str, limit_s: float = 0.0) -> Any:
        """Within `limit_s`; 0: `swap_timeout_s`. vLLM leaves a call waiting whose core dies: that is looked at too."""
        limit_s = limit_s or self._settings.swap_timeout_s
        deadline = time.monotonic() + limit_s
        task = asyncio.ensure_future(call)
        try:
            while not (await asyncio.wait((task,), timeout=_DEATH_POLL_S))[0]:
                compat.raise_if_dead(self._alive())
                if time.monotonic() > deadline:
                    raise TimeoutError(f"vLLM took more than {limit_s:g} s for {what}")
            return task.result()
        finally:
            task.cancel()

    async def _revive(self, dead: Any) -> None:
        """Start a core that died again, with the weights it had. Raises EngineStopped when that can't be."""
        async with self._update:
            if self._core is not dead:
                self._alive()  # another request's call did it, or it failed for good
                return
            self._gate.clear()
            self._running.clear()
            self._count_busy()
            self._watch_none()
            try:
                while not await self._restored(dead):
                    dead = self._core
                self._salt = str(next(self._loads))
            except Exception as error:
                self._failure = self._failure or error
                raise EngineStopped(f"vLLM could not be started again: {error}") from error
            finally:
                self._gate.set()

    async def _restored(self, dead: Any) -> bool:
        """Start a core in the place of `dead`; False when that died as well."""
        self._restarted += 1
        log.warning("engine died", restart=self._restarted, of=self._settings.restarts, source=self._source)
        if self._restarted > self._settings.restarts:
            raise EngineStopped(f"vLLM's core died {self._restarted} times")
        # vLLM tells them from a thread of its own, which may be late: once the engine is shut down nobody does.
        compat.fail_requests(dead, compat.dead_errors()[0]())
        await asyncio.to_thread(dead.shutdown)
        self._alive()  # not one that was stopped meanwhile: a start takes minutes
        if self._source is not None and not await asyncio.to_thread(Path(self._source).is_dir):
            raise EngineStopped(f"vLLM's core died, and its weights can't be had again from {self._source}")
        try:
            await self._build()
            if self._source is not None:
                specs = await self._stage(self._source)
                await self._swap(self._source, self._version, specs, self._fingerprint)
        except compat.dead_errors():
            self._alive()  # not one that was stopped
            self._watch_none()
            return False
        return True

    # ---------------------------------------------------------------------------------------------- requests

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
        ids = [int(i) for i in prompt_ids]
        room = room_for_answer(ids, self._context_tokens, self._vocabulary)
        params = compat.sampling_params(
            max_tokens=min(sampling.max_new_tokens, room), temperature=sampling.temperature, top_k=sampling.top_k,
            top_p=sampling.top_p, stop_ids=sampling.stop_ids, seed=sampling.seed,
        )  # fmt: skip
        while True:
            while not self._gate.is_set():
                await self._gate.wait()
            core = self._alive()
            try:
                return await self._one(core, ids, params)
            except compat.dead_errors():
                if self._core is None:
                    raise EngineStopped("the engine stopped before the request ended") from None
                # A caller that is cancelled must not leave a core without its weights to the others.
                await to_the_end(asyncio.create_task(self._revive(core)))

    async def _one(self, core: Any, ids: list[int], params: Any) -> Completion:
        name = f"km-{next(self._numbers)}"
        try:
            running = await self._hand_in(core, name, ids, params)
            try:
                output = await compat.collect(running.collector)
            finally:
                self._running.pop(running.collector.request_id, None)
                self._count_busy()
        except asyncio.CancelledError:  # also of a request that was on its way in
            if self._core is core:
                await compat.abort(core, name)
            raise
        return self._completion(output, running)

    async def _hand_in(self, core: Any, name: str, ids: list[int], params: Any) -> Running:
        self._submitting += 1
        try:
            collector = await compat.submit(core, name, ids, params, self._salt)
            running = self._running[collector.request_id] = Running(collector)
        finally:
            self._submitting -= 1
        self._count_busy()
        return running

    def _completion(self, output: Any, running: Running) -> Completion:
        sampled = output.outputs[0]
        ids = np.array(sampled.token_ids, np.int32)
        if sampled.finish_reason not in ("stop", "length"):
            raise EngineStopped(f"vLLM ended a request by {sampled.finish_reason!r}")
        versions, alike = running.versions(sampled, self._version)
        self.spans_differed += int(not alike)
        self._tokens_total += len(ids)
        return Completion(
            ids=ids,
            logprobs=compat.logprobs(output),
            versions=versions,
            finish=sampled.finish_reason,
        )

    def _count_busy(self) -> None:
        now = time.perf_counter()
        if self._busy_since is not None:
            self._busy_s += now - self._busy_since
        self._busy_since = now if self._running else None

    # ----------------------------------------------------------------------------------------------- weights

    async def load_weights(self, source: str, version: int, fingerprint: str = "") -> str:
        """Raises FileNotFoundError, ValueError, TimeoutError or WeightsNotReceived, and changes nothing, when the
        weights can't be received or are not this model's; EngineStopped (WrongWeights) when the engine failed while
        they were put in place."""
        # A caller that is cancelled must not leave the engine paused, or with half of the weights.
        return await to_the_end(asyncio.create_task(self._load(source, version, fingerprint)))

    async def _load(self, source: str, version: int, fingerprint: str) -> str:
        while True:
            async with self._update:
                core = self._alive()
                try:
                    return await self._swap(source, version, await self._stage(source), fingerprint)
                except compat.dead_errors():
                    pass
            await self._revive(core)  # with the weights it had, at most `restarts` times

    async def _stage(self, source: str) -> list[Spec]:
        """Have every worker receive `source`, while the engine generates."""
        core, ticket = self._core, next(self._loads)
        timeout_s = self._settings.stage_timeout_s
        began = time.perf_counter()
        await self._bounded(core.collective_rpc("km_stage", args=(source, ticket, timeout_s)), "starting to receive")
        try:
            while True:
                states = await self._bounded(core.collective_rpc("km_staged", args=(ticket,)), "receiving weights")
                for state in states:
                    if state["failure"]:
                        kind, text = state["failure"]
                        raise _ERRORS.get(kind, WeightsNotReceived)(text if kind in _ERRORS else f"{kind}: {text}")
                if all(state["ready"] for state in states):
                    break
                if time.perf_counter() - began > timeout_s:
                    raise TimeoutError(f"weights from {source} were not received within {timeout_s:g} s")
                await asyncio.sleep(_STAGE_POLL_S)
            specs = await self._bounded(core.collective_rpc("km_specs"), "naming tensors")
        except BaseException:
            if not core.errored:
                await self._bounded(core.collective_rpc("km_drop"), "giving weights back")
            raise
        self._staged_s += time.perf_counter() - began
        self._ticket = ticket
        return [Spec(name, tuple(shape), dtype) for name, shape, dtype in specs[0]]

    async def _swap(self, source: str, version: int, specs: list[Spec], wanted: str) -> str:
        """Pause, put the staged weights in place, prove them, resume. Whatever goes wrong in here leaves an engine that
        must not generate, so that it is given up."""
        self._gate.clear()
        try:
            return await self._bounded(self._exchange(source, version, specs, wanted), "putting weights in place")
        except compat.dead_errors():
            raise
        except Exception as error:
            self._failure = self._failure or error
            await self.stop()
            if isinstance(error, WrongWeights):
                raise
            raise EngineStopped(
                f"version {version} could not be put in place, the engine is given up: {error}"
            ) from error
        finally:
            self._gate.set()

    async def _exchange(self, source: str, version: int, specs: list[Spec], wanted: str) -> str:
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        core = self._core
        while self._submitting:  # noqa: ASYNC110 - hand-ins that have begun, a few turns of the loop
            await asyncio.sleep(0)
        began = time.perf_counter()
        await core.pause_generation(mode="keep", clear_cache=False)
        await compat.drain(core, self._settings.swap_timeout_s)
        self._stands(compat.tokens_so_far(core))
        await core.start_weight_update()
        await core.update_weights(WeightTransferUpdateRequest(update_info={"ticket": self._ticket}))
        await compat.finish_weight_update(core, str(version))
        answers = await core.collective_rpc("km_probe")
        found = await asyncio.to_thread(join, specs, [(a["kept"], a["values"]) for a in answers])
        if wanted and found != wanted:
            raise WrongWeights(version, wanted, found)
        self._version, self._source, self._salt = version, source, str(self._ticket)
        self._fingerprint = found
        await core.resume_generation()
        self.pauses.append(time.perf_counter() - began)
        self._paused_s += self.pauses[-1]
        log.info("weights in place", version=version, paused_s=round(self.pauses[-1], 4), source=source)
        await core.collective_rpc("km_drop")
        return found

    def _stands(self, tokens: dict[str, int]) -> None:
        """All tokens that stand now were sampled by the version in use. A request that the core has ended has all its
        tokens already."""
        for request_id, running in self._running.items():
            running.stands(tokens.get(request_id, self._context_tokens), self._version)
