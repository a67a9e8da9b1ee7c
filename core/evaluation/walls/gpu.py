"""What a candidate's walls must let through for a GPU: device files, the driver's library, and what the driver reads.

The device files are those of the one GPU and the driver's control files; another GPU's are not shown. No torch here.
"""

import ctypes
import glob
import os
from functools import cache

PROFILER = {"TEARDOWN_CUPTI": "0", "DISABLE_CUPTI_LAZY_REINIT": "1"}
"""For a process that profiles: CUPTI, once up, stays up. Torn down after each session it takes most of a second to come
back, and crashes where CUDA graphs are."""


@cache
def devices() -> list[str]:
    """Device files of this process's first visible NVIDIA GPU (CUDA_VISIBLE_DEVICES as a number, else 0)."""
    shown = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    number = shown if shown.isdigit() else "*"
    wanted = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", *glob.glob(f"/dev/nvidia{number}")]
    return sorted(path for path in wanted if os.path.exists(path) and path.removeprefix("/dev/nvidia") != "")


def shown() -> list[str]:
    """The GPUs that this process is shown, as CUDA_VISIBLE_DEVICES names them; without it all, by their files."""
    found = [part.strip() for part in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if part.strip()]
    if found:
        return found
    files = glob.glob("/dev/nvidia[0-9]*")
    return sorted((path.removeprefix("/dev/nvidia") for path in files), key=int)


def one_gpu(number: int) -> dict[str, str]:
    """What to add to the environment of worker `number`, so that it sees one of the visible GPUs: they go round."""
    gpus = shown()
    chosen = {"CUDA_VISIBLE_DEVICES": gpus[number % len(gpus)]} if gpus else {}
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", **PROFILER, **chosen}


@cache
def library_folder() -> str:
    """Where the driver's libcuda.so.1 lies; empty without one."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return ""
    with open("/proc/self/maps") as file:
        paths = [line.split()[-1] for line in file if "/libcuda.so" in line]
    return os.path.dirname(paths[0]) if paths else ""


def readable() -> list[str]:
    """What the driver reads beside Python's installation."""
    wanted = [library_folder(), "/proc", "/sys", "/dev/shm", "/sbin", "/etc/alternatives"]
    wanted += glob.glob("/opt/nvidia/nsight-compute")  # gpu.counters
    return [path for path in wanted if path and os.path.exists(path)]


def environment() -> dict[str, str]:
    """For a zygote whose children use the GPU; Triton would start a program to find the library."""
    found = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_MODULE_LOADING": "LAZY", **PROFILER}
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    if shown is not None:
        found["CUDA_VISIBLE_DEVICES"] = shown
    folder = library_folder()
    if folder:
        found |= {"TRITON_LIBCUDA_PATH": folder, "LD_LIBRARY_PATH": folder}
    return found
