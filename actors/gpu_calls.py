"""What an evaluator tells of its GPUs, and how a person's "probe it" reaches it.

    gateway    counts up `probe-<evaluator>` in the run's key-value state
    evaluator  sees the new number, probes all its GPUs in fresh processes, puts the result under `probed-<evaluator>`
    gateway    looks for a result of that number, or a later one

The state of a GPU is what its workers share (`core.evaluation.gpu.shared`); here it is only read, and probed cold.
"""

import asyncio
import contextlib
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from bus.run_bus import RunBus
from core.evaluation.gpu import probe as gpu_probe
from core.evaluation.gpu.health import GpuHealth, GpuUnfit
from core.evaluation.walls import gpu as gpu_walls

ANSWER_S = 120.0
_LOOK_S = 0.2


class Probes(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a call."""

    number: int
    results: dict[str, Any]


class GpuReport:
    """The GPUs that one evaluator's workers use."""

    def __init__(self, devices: list[str], folder: Path | None = None) -> None:
        """
        Args:
            devices: `cuda:0` and so on as this process sees them; `cpu` in tests.
            folder: of the shared state, where it is not the machine's temporary folder.
        """
        self._health = {
            device: GpuHealth(device, probe=partial(gpu_probe.cold, device), folder=folder) for device in devices
        }

    def gauges(self) -> dict[str, float]:
        """Numbers for the beat; of several GPUs the worst state, the longest times and the sums of counts."""
        total: dict[str, float] = {}
        for health in self._health.values():
            for name, value in health.condition().gauges().items():
                worst = name == "gpu_state" or "_s_" in name or name.endswith("_s")
                total[name] = max(total.get(name, 0.0), value) if worst else total.get(name, 0.0) + value
        return total

    async def probe(self) -> dict[str, Any]:
        """Probe all, one after the other: device -> what came out."""
        found: dict[str, Any] = {}
        for device, health in self._health.items():
            try:
                probed = await asyncio.to_thread(health.probe_now)
                result = msgspec.to_builtins(probed)
            except GpuUnfit as error:
                result = {"passed": False, "why": str(error)}
            found[device] = {**result, "state": health.condition().state}
        return found


def used_by(workers: int, on_gpu: bool) -> list[str]:
    """The devices that so many workers take in turn; none on the CPU tier."""
    if not on_gpu:
        return []
    return [f"cuda:{number}" for number in range(min(workers, max(1, len(gpu_walls.shown()))))]


async def call(bus: RunBus, evaluator: str, timeout_s: float = ANSWER_S) -> dict[str, Any]:
    """Have an evaluator's GPUs probed; what came out. Raises TimeoutError."""
    number = await bus.count_up(f"probe-{evaluator}")
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            while True:
                entry = await bus.broker.get(bus.names.sampler, f"probed-{evaluator}")
                if entry is not None and entry.value:
                    answer = msgspec.json.decode(entry.value, type=Probes)
                    if answer.number >= number:
                        return answer.results
                await asyncio.sleep(_LOOK_S)
    raise TimeoutError(f"{evaluator} did not answer within {timeout_s:.0f} s")


async def follow(bus: RunBus, report: GpuReport) -> None:
    """An evaluator's side: answer every call from now on; runs until it is cancelled."""
    mine = f"probe-{bus.actor}"
    standing = await bus.broker.get(bus.names.sampler, mine)
    done = int(standing.value) if standing is not None and standing.value else 0
    async for entry in bus.broker.watch(bus.names.sampler):
        if entry.key != mine or not entry.value or int(entry.value) <= done:
            continue
        done = int(entry.value)
        answer = Probes(number=done, results=await report.probe())
        await bus.broker.put(bus.names.sampler, f"probed-{bus.actor}", msgspec.json.encode(answer))
