"""What runs inside vLLM's worker processes: receive weights beside generation, put them in place, read them back.

    km_stage(source)      a thread receives the tensors (`core.weights.incoming`) while the worker generates
    update_weights        vLLM's own call, between start_ and finish_weight_update: what was staged goes into the model
    km_probe              the model's values at the fingerprint's places (`core.generation.vllm_layout`)

A worker ends with the process that started the engine, so that none is left holding a card.

vLLM injects `WorkerExtension` into its worker class (`worker_extension_cls`); importing this module registers the
weight-transfer backend. Staging and planning are the slow half and happen outside the pause; what is left inside it is
a copy in memory. Nothing of the model changes before everything was received and found to fit.
"""

import os
import select
import signal
import threading
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

from core.generation.vllm_compat import OWNER
from core.generation.vllm_layout import Reader, Spec
from core.weights.incoming import HostBuffer, receive
from core.weights.received import Received

BACKEND = "kernelmill"


class _Stage:
    """Weights received for one ticket. One worker stages one set at a time; a newer ticket replaces an older one."""

    def __init__(self) -> None:
        self.ticket = -1
        self.received: Received | None = None
        self.specs: list[Spec] = []
        self.failure: tuple[str, str] | None = None
        self.seconds = 0.0
        self.host = HostBuffer()
        self.host_lock = threading.Lock()
        self.lock = threading.Lock()

    def start(
        self, source: str, base: str, ticket: int, device: torch.device, reader: Reader, timeout_s: float
    ) -> None:
        self.drop()
        self.ticket, self.failure, self.seconds = ticket, None, 0.0
        threading.Thread(
            target=self._run, args=(source, base, ticket, device, reader, timeout_s), name="weights", daemon=True
        ).start()

    def _run(self, source: str, base: str, ticket: int, device: torch.device, reader: Reader, timeout_s: float) -> None:
        began = time.perf_counter()
        try:
            if device.type == "cuda":
                torch.cuda.set_device(device)
            received = receive(source, device=device, timeout_s=timeout_s, host=_Turn(self, ticket), base=base)
            specs = [Spec(name, tuple(t.shape), str(t.dtype).removeprefix("torch.")) for name, t in received.tensors]
            reader.prepare(specs)
        except Exception as error:  # told to whoever asks for this ticket
            failure = (type(error).__name__, str(error))
            with self.lock:
                if ticket == self.ticket:
                    self.failure = failure
            return
        with self.lock:
            if ticket != self.ticket:  # given up meanwhile
                received.release()
                return
            self.specs, self.received, self.seconds = specs, received, time.perf_counter() - began

    def drop(self) -> None:
        with self.lock:
            if self.received is not None:
                self.received.release()
            self.received, self.ticket = None, -1


class _Turn:
    """The page-locked memory for one ticket's weights. A thread that was given up and is late gets none: those of a
    newer ticket may be in it."""

    def __init__(self, stage: _Stage, ticket: int) -> None:
        self._stage, self._ticket = stage, ticket

    def hold(self, tensors: list[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
        with self._stage.host_lock:
            if self._stage.ticket != self._ticket:
                raise RuntimeError(f"ticket {self._ticket} was given up")
            return self._stage.host.hold(tensors)


_stage = _Stage()


class WorkerExtension:
    """Methods that the engine calls on every worker; plain data in and out."""

    def km_stage(self, source: str, ticket: int, timeout_s: float) -> None:
        worker: Any = self
        if not hasattr(worker, "km_reader"):
            worker.km_reader = Reader(worker.model_runner.get_model())
        base = str(worker.model_config.model)
        _stage.start(source, base, ticket, torch.device(worker.device), worker.km_reader, timeout_s)

    def km_staged(self, ticket: int) -> dict[str, Any]:
        """`ready`, or `failure` (error's name, text), of a ticket."""
        with _stage.lock:
            return {
                "ready": _stage.ticket == ticket and _stage.received is not None,
                "failure": list(_stage.failure) if _stage.failure else None,
                "seconds": _stage.seconds,
                "bytes": _stage.received.bytes if _stage.received else 0,
            }

    def km_probe(self) -> dict[str, Any]:
        worker: Any = self
        with torch.inference_mode():
            kept, values = worker.km_reader.read(_stage.specs)
        return {"kept": kept, "values": values}

    def km_specs(self) -> list[list[Any]]:
        """[name, shape, dtype] of the tensors staged last."""
        return [[spec.name, list(spec.shape), spec.dtype] for spec in _stage.specs]

    def km_drop(self) -> None:
        _stage.drop()


@dataclass
class StagedInit(WeightTransferInitInfo):
    """Nothing to prepare."""


@dataclass
class StagedUpdate(WeightTransferUpdateInfo):
    ticket: int


class StagedWeights(WeightTransferEngine):
    """vLLM's weight-transfer backend for weights that this worker has staged."""

    init_info_cls = StagedInit
    update_info_cls = StagedUpdate

    def init_transfer_engine(self, init_info: StagedInit) -> None:
        pass

    def start_weight_update(self) -> None:
        if self._layerwise():
            from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

            initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.receive_weights(self.parse_update_info(update_info))

    @torch.no_grad()
    def receive_weights(self, update_info: StagedUpdate) -> None:
        received = _stage.received
        if received is None or _stage.ticket != update_info.ticket:
            raise RuntimeError(f"no weights are staged for ticket {update_info.ticket}")
        with torch.device(self.device):
            self.model.load_weights(iter(received.tensors))
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def finish_weight_update(self) -> None:
        if self._layerwise():
            from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

            finalize_layerwise_reload(self.model, self.model_config)
            self._pack_tied_heads()

    def _pack_tied_heads(self) -> None:
        """A head that is tied to the embedding is no layer that vLLM loads, so that its packed copy would stay old."""
        from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

        for module in self.model.modules():
            if isinstance(getattr(module, "quant_method", None), UnquantizedEmbeddingMethod):
                module.quant_method.process_weights_after_loading(module)

    def shutdown(self) -> None:
        _stage.drop()

    @staticmethod
    def trainer_send_weights(iterator: Any, trainer_args: Any) -> None:
        raise NotImplementedError("the learner publishes through core.weights")

    def _layerwise(self) -> bool:
        """Whether weights stand in another form than they are loaded in (packed, quantized), so that vLLM must load
        each layer anew and process it. Plain weights on a card are overwritten in place: CUDA graphs keep their
        addresses, and it needs neither memory nor time for a second copy."""
        if self.device.type != "cuda":
            return True
        methods = {type(m.quant_method).__name__ for m in self.model.modules() if getattr(m, "quant_method", None)}
        return not all(name.startswith("Unquantized") for name in methods)


def _end_with_owner() -> None:
    """End this process when the one that started the engine is gone, however it went: vLLM's core does not look, and
    would keep the card's memory from the engine that comes next."""
    owner = int(os.environ.get(OWNER, "0"))
    if not owner or owner == os.getpid():
        return

    def watch(handle: int) -> None:
        select.select([handle], [], [])
        os.kill(os.getpid(), signal.SIGKILL)

    try:
        handle = os.pidfd_open(owner)
    except ProcessLookupError:
        os.kill(os.getpid(), signal.SIGKILL)
        return
    threading.Thread(target=watch, args=(handle,), name="owner", daemon=True).start()


WeightTransferEngineFactory.register_engine(BACKEND, StagedWeights)
_end_with_owner()
