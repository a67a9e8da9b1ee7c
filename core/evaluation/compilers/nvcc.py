"""Where NVIDIA's compiler is, for CUDA C++ candidates: found by looking, used inside the sandbox only.

CUDA_HOME, then the PATH, then the PyPI packages beside torch (nvidia-cuda-nvcc and what it needs), then /usr/local. The
headers that torch needs are torch's own; the runtime's come with nvcc.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sysconfig

import msgspec

from core.evaluation.walls import sandbox

INSTALL = (
    "pip install nvidia-cuda-nvcc nvidia-cuda-crt nvidia-nvvm nvidia-cuda-cccl nvidia-cuda-runtime, or set CUDA_HOME"
)


class Toolchain(msgspec.Struct, frozen=True, kw_only=True):
    """A usable nvcc with the host compiler and the headers that it needs."""

    nvcc: str
    cxx: str
    version: str
    includes: tuple[str, ...]
    """torch's and Python's include folders."""
    system_includes: tuple[str, ...] = ()
    """Where nvcc's and the host compiler's own headers are."""


def find_nvcc() -> str:
    """Path of nvcc, "" when there is none."""
    homes = [os.environ.get("CUDA_HOME", ""), os.environ.get("CUDA_PATH", "")]
    found = [os.path.join(home, "bin", "nvcc") for home in homes if home]
    found.append(shutil.which("nvcc") or "")
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        found += [os.path.join(folder, part, "bin", "nvcc") for part in ("cu13", "cuda_nvcc", "cu12")]
    found.append("/usr/local/cuda/bin/nvcc")
    return next((os.path.realpath(path) for path in found if path and os.access(path, os.X_OK)), "")


def find_toolchain() -> Toolchain | str:
    """What compiles CUDA C++ here, or one line that says what is missing and what to do."""
    nvcc = find_nvcc()
    if not nvcc:
        return f"no nvcc on this machine: {INSTALL}"
    cxx = shutil.which("g++") or shutil.which("c++") or ""
    if not cxx:
        return "nvcc needs a C++ compiler: install g++"
    torch = importlib.util.find_spec("torch")
    if torch is None or not torch.submodule_search_locations:
        return "torch is not installed"
    root = os.path.join(torch.submodule_search_locations[0], "include")
    includes = (root, os.path.join(root, "torch", "csrc", "api", "include"), sysconfig.get_path("include"))
    home = _home(nvcc)
    readable = sandbox.readable_paths()
    for path in (nvcc, home, cxx, *includes):
        if not any(path == folder or path.startswith(folder + "/") for folder in readable):
            return f"{path or nvcc} is outside of what the sandbox shows: {INSTALL}"
    system = [os.path.join(home, "include"), "/usr/include", "/usr/local/include", "/usr/lib/gcc"]
    return Toolchain(
        nvcc=nvcc,
        cxx=cxx,
        version=version(nvcc),
        includes=includes,
        system_includes=tuple(path for path in system if os.path.isdir(path)),
    )


def _home(nvcc: str) -> str:
    """The toolkit's folder as nvcc itself knows it: what is on the PATH may be a script that starts another one."""
    match = re.search(r"^#\$ TOP=(.+)$", _ask(nvcc, "--dryrun", "-c", "x.cu"), re.MULTILINE)
    return os.path.realpath(match[1]) if match else ""


def _ask(nvcc: str, *arguments: str) -> str:
    try:
        done = subprocess.run([nvcc, *arguments], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr


def version(nvcc: str) -> str:
    """`13.0` for a working nvcc, "" for one that does not answer."""
    match = re.search(r"release (\d+\.\d+)", _ask(nvcc, "--version"))
    return match[1] if match else ""
