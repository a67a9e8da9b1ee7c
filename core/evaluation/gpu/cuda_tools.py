"""What a GPU child needs to build CUDA C++: compilers, headers, libraries, this GPU's architecture. Trusted side."""

import glob
import importlib.util
import os
from typing import Any

import torch

from core.evaluation.compilers import nvcc
from core.evaluation.waits import BUILD_S


def find(device: str, arch: str = "", wall_s: float = BUILD_S) -> dict[str, Any] | str:
    """For `gpu.honesty.arrange`: cuda_on_gpu.Tools as plain data, or one line that says what is missing.

    `arch` (sm_90) is that of `device` when it is left out; `wall_s` is the compilers' time, on top of the candidate's.
    """
    tools = nvcc.find_toolchain()
    if isinstance(tools, str):
        return tools
    if not arch:
        major, minor = torch.cuda.get_device_capability(torch.device(device))
        arch = f"sm_{major}{minor}"
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.submodule_search_locations
    root = spec.submodule_search_locations[0]
    runtime = _runtime(tools.system_includes[0] if tools.system_includes else "", root)
    if not runtime:
        return f"no libcudart.so beside nvcc ({tools.nvcc}) or torch: {nvcc.INSTALL}"
    return {
        "nvcc": tools.nvcc,
        "cxx": tools.cxx,
        "arch": arch,
        "includes": [*tools.includes, *(path for path in tools.system_includes[:1] if path.endswith("/include"))],
        "headers": [*tools.includes, *tools.system_includes],
        "wall_s": wall_s,
        "libraries": [os.path.join(root, "lib"), runtime],
    }


def _runtime(include: str, torch_root: str) -> str:
    """The CUDA runtime's library: the one that torch itself uses first, since one process has one."""
    beside = os.path.join(os.path.dirname(torch_root), "nvidia", "*", "lib")
    home = os.path.dirname(include)
    for pattern in (beside, os.path.join(home, "lib64"), os.path.join(home, "lib"), os.path.join(torch_root, "lib")):
        found = sorted(glob.glob(os.path.join(pattern, "libcudart*.so*")))
        if found:
            return found[-1]
    return ""
