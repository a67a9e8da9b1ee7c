"""What the gateway says of itself: the bodies of the eval server's GET requests and resets, and Prometheus text.

The eval server's fields, with what is true here: a device is one evaluator; it is available while it has a free slot;
`cuda_available` says whether a GPU judges.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from actors.eval_desk import Desk, Device
from actors.fault_book import FaultBook

DESCRIPTIONS = {
    "triton": "Triton kernels, launched by forward of ModelNew",
    "cuda": "CUDA C++ through torch.utils.cpp_extension.load_inline",
}


def root(desk: Desk, book: FaultBook) -> dict[str, Any]:
    devices = _alive(desk)
    return {
        "service": "KernelMill gateway",
        "status": "running",
        "gpu_platform": _platform(desk),
        "cuda_available": _has_gpu(desk),
        "num_gpus": len(devices),
        "backends": list(desk.judging.terms.backends),
        "features": [
            "a sandboxed process per candidate",
            "secret seeds",
            "one judging per candidate, verdicts cached",
            "POST /eval_batch: answers as they come (NDJSON)",
            "GET /metrics (Prometheus)",
        ],
    }


def health(desk: Desk, book: FaultBook) -> dict[str, Any]:
    """Status 200 always: the gateway itself is up. `status` is `healthy` while somebody can judge."""
    devices = desk.judging.devices()
    alive = [device for device in devices if device.alive]
    free = [device.id for device in alive if device.available]
    why = desk.judging.unready()
    return {
        "status": "degraded" if why else "healthy",
        "gpu_platform": _platform(desk),
        "cuda_available": _has_gpu(desk),
        "supported_backends": list(desk.judging.terms.backends),
        "total_gpu_devices": len(alive),
        "available_gpu_devices": len(free),
        "busy_gpu_devices": len(alive) - len(free),
        "available_device_ids": free,
        "gpu_arch": desk.judging.terms.target or "not set",
        "devices": [
            {
                "device_id": device.id,
                "available": device.id in free,
                "status": "healthy" if device.alive and device.sound else "error",
                "fault_count": book.faults(device.id),
            }
            for device in devices
        ],
        "isolation": "sandbox",
        "total_memory_faults": book.total,
        "max_faults_per_device": book.threshold,
        "kernelmill": {
            "why": why,
            "requests": desk.taken,
            "candidates": desk.in_hand,
            "places": desk.places,
            "slots": sum(device.workers for device in alive),
        },
    }


def gpu_status(desk: Desk, book: FaultBook) -> dict[str, Any]:
    devices = desk.judging.devices()
    return {
        "total_devices": len(devices),
        "devices": [
            {
                "device_id": device.id,
                "name": device.name,
                "available": device.available,
                "alive": device.alive,
                "workers": device.workers,
                "busy_workers": device.busy,
                "worker_restarts": device.restarts,
                "judged": device.judged,
                "fault_count": book.faults(device.id),
                "gpu": device.gpu,
            }
            for device in devices
        ],
        "semaphore_permits": sum(device.workers - device.busy for device in devices if device.available),
        "total_faults": book.total,
    }


def backend_info(desk: Desk, book: FaultBook) -> dict[str, Any]:
    backends = desk.judging.terms.backends
    return {
        "supported_backends": list(backends),
        "default_backend": "cuda",
        "gpu_platform": _platform(desk),
        "backend_descriptions": {name: DESCRIPTIONS[name] for name in backends},
        "cuda_available": _has_gpu(desk),
        "triton_available": "triton" in backends,
        "process_isolation": "sandbox",
        "memory_fault_handling": True,
        "gpu_architecture": desk.judging.terms.target or None,
        "cuda_dsa_enabled": False,
    }


def fault_statistics(desk: Desk, book: FaultBook) -> dict[str, Any]:
    return book.statistics(_gpus(desk))


def reset_gpu(book: FaultBook, number: int, probes: dict[str, Any] | None, why: str = "") -> dict[str, Any]:
    """The count goes to 0, and a GPU is probed: `kernelmill.probe` has what came out, by device."""
    before = book.reset(number)
    body = {
        "status": "fault counter reset",
        "device_id": number,
        "old_fault_count": before[str(number)],
        "new_fault_count": 0,
    }
    if probes is None:
        return {**body, "kernelmill": {"probe": {}, "passed": False, "why": why}}
    passed = all(found["passed"] for found in probes.values()) if probes else None
    return {**body, "kernelmill": {"probe": probes, "passed": passed, "why": "" if probes else "no GPU to probe"}}


def cleanup(desk: Desk, book: FaultBook) -> dict[str, Any]:
    return {
        "status": "fault counters reset",
        "old_fault_counts": book.reset(),
        "message": "all counts are 0",
        "kernelmill": {"gpus": _gpus(desk)},
    }


def reset_devices(desk: Desk, book: FaultBook) -> dict[str, Any]:
    """Counts go to 0. There is no pool to reset: an evaluator is there while it says so itself, and a quarantine ends
    with a probe (`POST /reset_gpu/{id}` asks for one)."""
    book.reset()
    return {
        "status": "fault counters reset",
        "available_devices": [device.id for device in _alive(desk) if device.sound],
        "fault_counts": book.per_device(),
        "kernelmill": {"gpus": _gpus(desk)},
    }


def prometheus(desk: Desk, book: FaultBook, statuses: Counter[tuple[str, int]], seconds: Mapping[str, float]) -> str:
    """The text format, version 0.0.4."""
    devices = _alive(desk)
    lines: list[str] = []

    def metric(name: str, kind: str, meaning: str, values: Mapping[str, float]) -> None:
        lines.extend((f"# HELP kernelmill_gateway_{name} {meaning}", f"# TYPE kernelmill_gateway_{name} {kind}"))
        lines.extend(f"kernelmill_gateway_{name}{labels} {value:g}" for labels, value in values.items())

    answered = {f'{{path="{path}",status="{status}"}}': float(count) for (path, status), count in statuses.items()}
    metric("answers_total", "counter", "Answers to /eval and lines of /eval_batch.", answered)
    took = {f'{{path="{path}"}}': value for path, value in seconds.items()}
    metric("answer_seconds_total", "counter", "Seconds from request to answer, together.", took)
    for name, meaning, counts in (
        ("verdicts_total", "Verdicts judged for requests, once each however many share it.", desk.counts),
        ("verdicts_cached_total", "Verdicts that stood already when they were asked for.", desk.stood),
    ):
        by_kind = {f'{{kind="{kind}",category="{what}"}}': float(count) for (kind, what), count in counts.items()}
        metric(name, "counter", meaning, by_kind)
    faults = {f'{{evaluator="{name}"}}': float(book.faults(number)) for number, name in enumerate(book.names)}
    metric("faults", "gauge", "Faults per evaluator since the last reset.", faults)
    metric("requests", "gauge", "Requests in hand.", {"": desk.taken})
    metric("candidates", "gauge", "Candidates in hand.", {"": desk.in_hand})
    metric("places", "gauge", "Requests that may be in hand.", {"": desk.places})
    gpus = [(device.name, device.gpu) for device in desk.judging.devices() if device.gpu is not None]
    states = {f'{{evaluator="{name}",state="{gpu["state"]}"}}': 1.0 for name, gpu in gpus}
    metric("gpu_state", "gauge", "Whether evaluators' GPUs are healthy, quarantined or unfit.", states)
    harm = {
        f'{{evaluator="{name}",category="{what}"}}': float(count)
        for name, gpu in gpus
        for what, count in gpu["faults"].items()
    }
    metric("gpu_faults_total", "counter", "What went wrong on evaluators' GPUs.", harm)
    metric("evaluators", "gauge", "Evaluators that are alive.", {"": len(devices)})
    metric("slots", "gauge", "Candidates that they judge at once.", {"": sum(device.workers for device in devices)})
    return "\n".join(lines) + "\n"


def _alive(desk: Desk) -> list[Device]:
    return [device for device in desk.judging.devices() if device.alive]


def _gpus(desk: Desk) -> dict[str, Any]:
    """Number -> state, faults and times of its GPU."""
    return {str(device.id): device.gpu for device in desk.judging.devices() if device.gpu is not None}


def _has_gpu(desk: Desk) -> bool:
    return desk.judging.terms.device_class != "cpu"


def _platform(desk: Desk) -> str:
    if not _has_gpu(desk):
        return "CPU"
    return "ROCm/HIP" if desk.judging.terms.target.startswith("hip:") else "CUDA"
