"""What a candidate's walls must let through for a GPU: device files, the driver's library, and what the driver reads.

The device files are those of the one GPU and the driver's control files; another GPU's are not shown. The driver
numbers the GPUs whose files it can open: behind the walls the one that is shown is number 0, whatever it is outside. So
GPUs go by their UUIDs from here on, which are the same on both sides. No torch here.
"""

import ctypes
import glob
import os
import re
from functools import cache
from typing import NamedTuple

PROFILER = {"TEARDOWN_CUPTI": "0", "DISABLE_CUPTI_LAZY_REINIT": "1"}
"""For a process that profiles: CUPTI, once up, stays up. Torn down after each session it takes most of a second to come
back, and crashes where CUDA graphs are."""


DRIVER = "/proc/driver/nvidia/gpus"


class Card(NamedTuple):
    uuid: str
    file: str
    """Its device file. Files are numbered by when the driver found a GPU, not by its PCI address."""


@cache
def cards(driver: str = DRIVER, files: str = "/dev") -> tuple[Card, ...]:
    """This machine's GPUs in the order of PCI_BUS_ID; empty where the driver does not tell. One whose device file is
    not here has no number either."""
    found = []
    for path in sorted(glob.glob(f"{driver}/*/information")):
        with open(path) as file:
            told = dict(re.findall(r"^(GPU UUID|Device Minor):\s*(\S+)", file.read(), re.MULTILINE))
        card = Card(told.get("GPU UUID", ""), f"{files}/nvidia{told.get('Device Minor', '')}")
        if card.uuid.startswith("GPU-") and re.search(r"nvidia\d+$", card.file) and os.path.exists(card.file):
            found.append(card)
    return tuple(found)


def card(name: str) -> Card | None:
    """What CUDA_VISIBLE_DEVICES calls so: a number, or a UUID or its beginning. None where it is not known (a slice of
    a GPU, a driver that does not tell)."""
    known = cards()
    if name.isdigit():
        return known[int(name)] if int(name) < len(known) else None
    fits = [one for one in known if name.startswith("GPU-") and one.uuid.startswith(name)]
    return fits[0] if len(fits) == 1 else None


def _first_shown() -> str:
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()


@cache
def devices() -> list[str]:
    """Device files of this process's first visible NVIDIA GPU; of all where it can't be told which that is."""
    name = _first_shown()
    known = card(name)
    files = [known.file] if known else glob.glob(f"/dev/nvidia{name if name.isdigit() else '*'}")
    wanted = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", *files]
    return sorted(path for path in wanted if os.path.exists(path))


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
    chosen = {"CUDA_VISIBLE_DEVICES": _inside(gpus[number % len(gpus)], restricted=False)} if gpus else {}
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", **PROFILER, **chosen}


def _inside(name: str, restricted: bool) -> str:
    known = card(name)
    if known is not None:
        return known.uuid
    return "0" if restricted and name.isdigit() else name


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


def environment(restricted: bool) -> dict[str, str]:
    """For a zygote whose children use the GPU, `restricted` where its walls hide the files of others; Triton would
    start a program to find the library."""
    found = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_MODULE_LOADING": "LAZY", **PROFILER}
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        found["CUDA_VISIBLE_DEVICES"] = _inside(_first_shown(), restricted)
    folder = library_folder()
    if folder:
        found |= {"TRITON_LIBCUDA_PATH": folder, "LD_LIBRARY_PATH": folder}
    return found
