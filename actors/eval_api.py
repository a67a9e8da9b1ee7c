"""The eval server's API as data: what a request says, and which answer a verdict is.

The API is that of the KernelBench eval server which slime-style trainers call (docs/gateway.md, field by field). Pure:
no HTTP, no bus, no clock.

A client that only reads `compiled` and `correctness` must never take our own trouble, or a tier that can't tell, for a
wrong kernel. So only verdicts about the candidate are results (200); all other answers have no such fields:

    pass, fail                    200  {compiled, correctness, metadata, runtime, runtime_stats}; `memory` too
    fail: the source won't parse  400  {detail, metadata}
    fail: it used up its time     504
    fail: its process crashed     500
    unsupported                   501  asking again will not help
    infra                         503  with Retry-After; 500 when trying again did not help
    infra: the reference fails    400  the request is at fault, not the candidate and not us
"""

from typing import Any

import msgspec

from core.evaluation.cuda_source import is_triton
from core.evaluation.findings import joined
from core.evaluation.source_text import without_mark
from core.evaluation.verdict import Verdict
from core.identity import digest
from core.tasks.task import BACKENDS, Task

IGNORED = ("seed_num", "num_correct_trials", "num_perf_trials", "verbose")
"""Accepted and without effect: seeds are secret, trials are the judge's setting."""
BAD_REFERENCE = "task_error"
"""Category of an infra verdict that no retry helps: `original_model_src` itself does not run."""
RETRY_S = 5

SERVER_CATEGORIES = {
    "syntax_error": "syntax_error",
    "no_kernel": "triton_jit_error",
    "compile_error": "triton_compilation_error",
    "registers": "triton_compilation_error",
    "kernel_error": "triton_compilation_error",
    "illegal_kernel": "triton_compilation_error",
    "shared_memory": "shared_memory_exceeded",
    "out_of_bounds": "illegal_memory_access",
    "timeout": "timeout",
    "compile_timeout": "timeout",
    "crash": "process_error",
    "memory": "process_error",
    "output_limit": "process_error",
    "too_large": "parse_error",
    "unsupported": "unsupported_architecture",
    "infra": "subprocess_error",
    BAD_REFERENCE: "unknown",
    "evaluator": "subprocess_error",
}
"""Our category -> the eval server's; `unknown` for the others, none where the outputs were compared and are wrong."""
CRASHES = {"SIGSEGV": "segmentation_fault", "SIGBUS": "segmentation_fault", "SIGABRT": "memory_fault"}
STATUS = {"syntax_error": 400, "timeout": 504, "compile_timeout": 504, "crash": 500}
"""Failures that the eval server answers with an error instead of a result."""


class BadRequest(ValueError):
    """A request that can't be answered; `status` is the HTTP status, the text one line."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class EvalRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /eval`; unknown fields are ignored."""

    original_model_src: str
    """The reference in the KernelBench format."""
    custom_model_src: str
    """The candidate: a module with class ModelNew."""
    seed_num: int = 42
    num_correct_trials: int = 5
    num_perf_trials: int = 100
    verbose: bool = False
    measure_performance: bool = True
    """False: the answer carries no runtime."""
    preferred_device: int | None = None
    """Number of an evaluator, as /gpu_status lists them: it gets the work if it has a free slot soon."""
    backend: str = "cuda"
    id: Any = None
    """In `POST /eval_batch`: comes back with the answer."""

    def task(self) -> Task:
        """The reference as a task, named after its content."""
        source = without_mark(self.original_model_src)
        name = f"gateway-{digest(source, size=6)}"
        return Task(
            task_id=f"gateway/{name}",
            name=name,
            level=1,
            origin="gateway",
            source=source,
            backend=self.backend,
        )


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /eval_batch`; each request is read on its own, so that one bad one spoils no other."""

    requests: list[msgspec.Raw]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """An HTTP answer: status, JSON body, and when to ask again (seconds; 0: no such header)."""

    status: int
    body: dict[str, Any]
    retry_after_s: int = 0


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What this gateway's evaluators judge by; part of every answer."""

    backends: tuple[str, ...]
    device_class: str
    target: str
    draws: int
    modelled_runtime: bool = False
    """Give modelled times as `runtime` too. Off: a client that divides its own measured baseline by it would mix the
    two kinds."""


_NO_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What reading a body may raise; RecursionError where it is nested too deeply, in a field that is ignored too."""
_requests = msgspec.json.Decoder(EvalRequest, strict=False)
_batches = msgspec.json.Decoder(Batch)


def read_request(body: bytes, backends: tuple[str, ...]) -> EvalRequest:
    """The request in a JSON body. Raises BadRequest: 422 when it is not one, 400 for a backend that is not judged."""
    try:
        request = _requests.decode(body)
    except _NO_JSON as error:
        raise BadRequest(422, f"the body is not an eval request: {error}") from None
    if request.backend not in BACKENDS:
        raise BadRequest(400, f"unknown backend {request.backend!r}: wanted one of {', '.join(backends)}")
    for name in ("original_model_src", "custom_model_src"):
        if not getattr(request, name).strip():
            raise BadRequest(422, f"{name} is empty: wanted Python source")
    # The API's default is 'cuda', and KernelBench's server runs Triton under it: clients leave it so.
    if request.backend == "cuda" and "triton" in backends and is_triton(request.custom_model_src):
        return msgspec.structs.replace(request, backend="triton")
    if request.backend not in backends:
        raise BadRequest(
            400,
            f"backend {request.backend!r} (the API's default is 'cuda') is not judged here: "
            f'send "backend": "{backends[0]}"',
        )
    return request


class _Named(msgspec.Struct):
    id: Any = None


def read_id(body: bytes) -> Any:
    """The `id` of a request that is none otherwise, so that its line in a batch's answer can be told; else None."""
    try:
        return msgspec.json.decode(body, type=_Named).id
    except _NO_JSON:
        return None


def read_batch(body: bytes) -> list[bytes]:
    """The bodies of the single requests. Raises BadRequest."""
    try:
        batch = _batches.decode(body)
    except _NO_JSON as error:
        raise BadRequest(422, f'the body is not {{"requests": [...]}}: {error}') from None
    if not batch.requests:
        raise BadRequest(422, "requests is empty: wanted at least one eval request")
    return [bytes(raw) for raw in batch.requests]


def answer(verdict: Verdict, request: EvalRequest, terms: Terms, *, evaluator: str, given_up: bool = False) -> Answer:
    """The answer that a verdict is.

    Args:
        evaluator: who judged.
        given_up: an infra verdict that was tried again as often as it will be for now.
    """
    metadata = _metadata(verdict, request, terms, evaluator)
    if verdict.kind == "infra" and verdict.category == BAD_REFERENCE:
        told = f"original_model_src does not run, so nothing was judged: {verdict.feedback}"
        return Answer(status=400, body={"detail": told, "metadata": metadata})
    if verdict.kind == "infra":
        told = f"not judged, and nothing is known of the kernel: {verdict.feedback}"
        if given_up:
            return Answer(status=500, body={"detail": told, "metadata": metadata})
        return Answer(status=503, body={"detail": told, "metadata": metadata}, retry_after_s=RETRY_S)
    if verdict.kind == "unsupported":
        told = f"this evaluator can't tell whether the kernel is right: {joined(verdict.feedback)}"
        return Answer(status=501, body={"detail": told, "metadata": metadata})
    status = STATUS.get(verdict.category, 200) if verdict.kind == "fail" else 200
    if status != 200:
        return Answer(status=status, body={"detail": verdict.feedback, "metadata": metadata})
    runtime, stats = _runtime(verdict, request, terms, evaluator)
    return Answer(
        status=200,
        body={
            "compiled": verdict.compiled,
            "correctness": verdict.correct,
            "metadata": metadata,
            "runtime": runtime,
            "runtime_stats": stats,
        },
    )


def server_category(verdict: Verdict) -> str:
    """The eval server's word for what went wrong; empty where it has none (right, or wrong outputs)."""
    if verdict.category == "crash":
        return next((word for name, word in CRASHES.items() if name in verdict.feedback), "process_error")
    if verdict.kind == "pass" or (verdict.stage == "correctness" and verdict.category not in SERVER_CATEGORIES):
        return ""
    return SERVER_CATEGORIES.get(verdict.category, "unknown")


def _metadata(verdict: Verdict, request: EvalRequest, terms: Terms, evaluator: str) -> dict[str, Any]:
    """The eval server's keys first, then ours under `kernelmill`."""
    metadata: dict[str, Any] = {
        "hardware": terms.device_class,
        "gpu_type": terms.target or "none",
        "device": evaluator,
    }
    if verdict.kind == "pass":
        metadata["correctness_trials"] = f"({terms.draws} / {terms.draws})"
    elif verdict.kind == "fail":
        what = _error_key(verdict)
        metadata[what] = verdict.feedback
        metadata[f"{what}_name"] = verdict.category
    if category := server_category(verdict):
        metadata["category"] = category
    metadata["kernelmill"] = {
        **{
            name: getattr(verdict, name)
            for name in (
                "candidate_key", "kind", "tier", "stage", "category", "feedback", "speed_kind", "speedup",
                "speedup_low", "runtime_ms", "baseline_ms", "wall_s", "screens",
                "baseline_trouble",
            )
        },
        "evaluator": evaluator,
        "trials": terms.draws,
        "seeds": "secret",
        "ignored": IGNORED,
    }  # fmt: skip
    return metadata


def _error_key(verdict: Verdict) -> str:
    if verdict.stage == "correctness":
        return "correctness_issue"
    return "runtime_error" if verdict.stage in ("launch", "timing") else "compilation_error"


def _runtime(verdict: Verdict, request: EvalRequest, terms: Terms, evaluator: str) -> tuple[float, dict[str, Any]]:
    """(milliseconds, statistics); -1.0 and none where nothing was measured, as in the eval server."""
    usable = verdict.speed_kind == "measured" or (verdict.speed_kind == "modelled" and terms.modelled_runtime)
    if not request.measure_performance or not usable or verdict.runtime_ms is None:
        return -1.0, {}
    clock = verdict.clock
    return verdict.runtime_ms, {
        **_statistics(clock, verdict.runtime_ms),
        "hardware": terms.device_class,
        "device": evaluator,
        "kind": verdict.speed_kind,
        "baseline": verdict.baseline_ms,
        "baseline_stats": _statistics(clock, verdict.baseline_ms, "baseline_") if clock else {},
        "speedup": verdict.speedup,
        "speedup_low": verdict.speedup_low,
    }


def _statistics(clock: dict[str, float], median_ms: float | None, side: str = "") -> dict[str, float | int | None]:
    """The eval server's numbers of one side's timed calls, in milliseconds; `mean` alone where the clock keeps none."""
    if f"{side}calls" not in clock:
        return {"mean": median_ms}
    numbers = {name: clock[f"{side}{name}_ms"] for name in ("mean", "std", "min", "max")}
    return {**numbers, "num_trials": int(clock[f"{side}calls"]), "median": median_ms}
