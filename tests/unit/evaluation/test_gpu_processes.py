"""What NVML says, read: memory that belongs to nobody, and devices' numbers."""

import pytest
import torch

from core.evaluation.gpu import processes as gpu_processes


@pytest.mark.parametrize(
    ("processes", "left"), [({}, None), ({1: 300, 2: 200}, 400), ({1: 300, 2: -1}, None)]
)  # fmt: skip
def test_memory_that_belongs_to_nobody_is_known_only_where_all_is_told(processes, left):
    assert gpu_processes.Reading(used_mb=900, total_mb=1000, processes=processes).unaccounted_mb == left


def test_a_devices_number_is_the_drivers(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-abc")
    assert (gpu_processes.physical("cuda:0"), gpu_processes.physical("cuda:1")) == ("3", "GPU-abc")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert (gpu_processes.physical("cuda"), gpu_processes.physical("cuda:2")) == ("0", "2")
    with pytest.raises(ValueError, match="wanted cuda"):
        gpu_processes.physical("hip:0")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_driver_tells_memory_and_identity():
    device = "cuda:0"
    held = torch.zeros(1 << 28, dtype=torch.uint8, device=device)
    reading = gpu_processes.read(device)
    assert reading is not None and reading.used_mb >= held.nbytes // 2**20 and reading.total_mb > 1000
    assert gpu_processes.identity(device).startswith("GPU-")
    gpu_processes.XidWatch(device).new()
