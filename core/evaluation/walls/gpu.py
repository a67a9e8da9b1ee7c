"""What a candidate's walls must let through for a GPU: device files, the driver's library, and what the driver reads.

The device files are those of the one GPU and the driver's control files; another GPU's are not shown. The driver
numbers the GPUs whose files it can open: behind the walls the one that is shown is number 0, whatever it is outside. So
GPUs go by their UUIDs from here on, which are the same on both sides. No torch here.
"""

import ctypes
import glob
import os
import re
from collections.abc import Sequence
from functools import cache
from itertools import takewhile
from typing import NamedTuple

PROFILER = {"TEARDOWN_CUPTI": "0", "DISABLE_CUPTI_LAZY_REINIT": "1"}
"""For a process that profiles: CUPTI, once up, stays up. Torn down after each session it takes most of a second to come
back, and crashes where CUDA graphs are."""


DRIVER = "/proc/driver/nvidia/gpus"
FILES = "KERNELMILL_GPU_FILES"
"""Names a zygote its device files: by its own CUDA_VISIBLE_DEVICES it can't tell which they are, where that is the
number behind the walls."""
_UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_TOLD = re.compile(r"^(GPU UUID|Device Minor|GPU Excluded):[ \t]*(\S+)", re.MULTILINE)


class Card(NamedTuple):
    uuid: str
    """Empty where the driver does not tell: before a GPU's first use, or at all."""
    file: str
    """Its device file. Files are numbered by when the driver found a GPU, not by its PCI address."""


def cards(driver: str = DRIVER, files: str = "/dev") -> tuple[Card, ...]:
    """The GPUs that this process can open, in the order of their numbers: PCI_BUS_ID, that of their files where the
    driver does not tell all addresses. A file may be here that can't be opened: a container's or a job's rules for
    devices count too. Not remembered, since a UUID may be told later."""
    told = _told(driver)
    here = {int(path.rpartition("nvidia")[2]): path for path in glob.glob(f"{files}/nvidia[0-9]*") if _opens(path)}
    here = {minor: path for minor, path in here.items() if minor not in told or not told[minor].excluded}
    known = all(minor in told for minor in here)
    order = sorted(here, key=lambda minor: (told[minor].place if known else (), minor))
    return tuple(Card(told[minor].uuid if minor in told else "", here[minor]) for minor in order)


class _Told(NamedTuple):
    place: tuple[int, ...]
    """Domain, bus, device, function."""
    uuid: str
    excluded: bool


def _told(driver: str) -> dict[int, _Told]:
    """What the driver says of its GPUs, by the numbers of their files."""
    found = {}
    for path in glob.glob(f"{driver}/*/information"):
        try:
            with open(path) as file:
                words = dict(_TOLD.findall(file.read()))
            place = tuple(int(part, 16) for part in re.split("[:.]", os.path.basename(os.path.dirname(path))))
            minor = int(words["Device Minor"])
        except (OSError, KeyError, ValueError):
            continue
        uuid = words.get("GPU UUID", "")  # of question marks until the GPU was used once
        found[minor] = _Told(place, uuid if _UUID.fullmatch(uuid) else "", words.get("GPU Excluded") == "Yes")
    return found


def _opens(path: str) -> bool:
    return path.rpartition("nvidia")[2].isdigit() and os.access(path, os.R_OK | os.W_OK)


def card(name: str) -> Card | None:
    """What CUDA_VISIBLE_DEVICES calls so: a number, or a UUID or its beginning. None where it is not known (a slice of
    a GPU, a driver that does not tell)."""
    known = cards()
    if name.isdigit():
        return known[int(name)] if int(name) < len(known) else None
    fits = [one for one in known if name.startswith("GPU-") and one.uuid.lower().startswith(name.lower())]
    return fits[0] if len(fits) == 1 else None


def shown() -> list[str]:
    """The GPUs that this process is shown, as CUDA_VISIBLE_DEVICES names them; without it the numbers of all. As in the
    driver, the first word that names none (empty, -1, NoDevFiles) ends the list."""
    said = os.environ.get("CUDA_VISIBLE_DEVICES")
    if said is None:
        return [str(number) for number in range(len(cards()))]
    return list(takewhile(_names_one, map(str.strip, said.split(","))))


def _names_one(name: str) -> bool:
    return name[:1].isdigit() or name.startswith(("GPU-", "MIG-"))


def _first_shown() -> str:
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()


def devices(name: str = "") -> list[str]:
    """Device files of the GPU of that name, else of this process's first visible one; of all where it can't be told
    which that is."""
    if not name and FILES in os.environ:
        wanted = os.environ[FILES].split(os.pathsep)
    else:
        name = name or _first_shown()
        known = card(name)
        unclear = _names_one(name) and not name.isdigit()
        files = [known.file] if known else glob.glob("/dev/nvidia*") if unclear else []
        wanted = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", *files]
    return sorted(path for path in set(wanted) if os.path.exists(path))


def one_gpu(number: int, of: Sequence[str] | None = None) -> dict[str, str]:
    """What to add to the environment of worker `number`, so that it sees one of these GPUs (None: the visible ones):
    they go round."""
    gpus = shown() if of is None else of
    chosen = {"CUDA_VISIBLE_DEVICES": _inside(gpus[number % len(gpus)], restricted=False)} if gpus else {}
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", **PROFILER, **chosen}


def _inside(name: str, restricted: bool) -> str:
    known = card(name)
    if known is not None and known.uuid:
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


def environment(restricted: bool, name: str = "") -> dict[str, str]:
    """For a zygote whose children use the GPU of that name, else the first visible one; `restricted` where its walls
    hide the files of others. Triton would start a program to find the library."""
    found = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_MODULE_LOADING": "LAZY", **PROFILER}
    found[FILES] = os.pathsep.join(devices(name))
    if name or "CUDA_VISIBLE_DEVICES" in os.environ:
        found["CUDA_VISIBLE_DEVICES"] = _inside(name or _first_shown(), restricted)
    folder = library_folder()
    if folder:
        found |= {"TRITON_LIBCUDA_PATH": folder, "LD_LIBRARY_PATH": folder}
    return found
