"""CUDA C++ in the compile stage's child: runs nvcc on recorded sources, in a private folder, and sends what it printed.

torch's headers cost 20 s of processor time a file, most candidates need a twentieth of them. So each file is compiled
with a small set of torch's own headers first (Tensor, the operators that the text names, dispatch macros): what
compiles with those compiles with all. What does not is compiled again with all of them, and only that answer counts
as a refusal, unless headers can't have been the reason: the assembler refused, or a name is undefined that stands in
no header. Frames:

    {"file": name, "headers": "few" | "all", "code": exit status, "output": text, "final": bool, "wall_s": s}
"""

import os
import re
import subprocess
import time
from typing import Any

from core.evaluation import harness

_KEPT_CHARS = 64 * 1024
_TORCH_HEADERS = ("torch/types.h", "torch/extension.h", "torch/all.h", "torch/torch.h", "ATen/ATen.h")
_NAMES_TORCH = re.compile(r"#\s*include\s*[<\"](?:torch|ATen)/")
_NEEDS_ALL = re.compile(r"\b(?:PYBIND11_MODULE|py::|pybind11::|torch::nn\b|torch::autograd\b)")
_FEW = """#pragma once
#include <optional>
#include <vector>
#include <ATen/core/Tensor.h>
#include <ATen/Dispatch.h>
#include <c10/util/Exception.h>
{wanted}
namespace torch {{
using namespace at;
using std::nullopt;
using std::optional;
using Dtype = at::ScalarType;
constexpr auto kUInt8 = at::kByte;
constexpr auto kInt8 = at::kChar;
constexpr auto kInt16 = at::kShort;
constexpr auto kInt32 = at::kInt;
constexpr auto kInt64 = at::kLong;
constexpr auto kFloat16 = at::kHalf;
constexpr auto kFloat32 = at::kFloat;
constexpr auto kFloat64 = at::kDouble;
}}
"""


def run(job: dict[str, Any], channel: harness.Channel, folder: str) -> None:
    """Compile `job["cuda"]`: a list of {"file", "text", "command"}; `job["includes"]` are torch's and Python's,
    `job["headers"]` the folders of every header that could be included."""
    for file in job["cuda"]:
        path = os.path.join(folder, file["file"])
        with open(path, "w", encoding="utf-8", errors="replace") as target:
            target.write(file["text"])
        all_headers = [f"-I{include}" for include in job["includes"]]
        ways = [("all", all_headers)]
        if _NAMES_TORCH.search(file["text"]) and not _NEEDS_ALL.search(file["text"]):
            few = os.path.join(folder, "few")
            _write_few(few, file["text"], job["includes"][0])
            ways.insert(0, ("few", [f"-I{few}", *all_headers]))
        for headers, includes in ways:
            channel.send({"file": file["file"], "headers": headers})
            started = time.monotonic()
            done = subprocess.run(
                [*file["command"], *includes, path],
                cwd=folder,
                env={"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                check=False,
            )
            output = done.stdout[:_KEPT_CHARS].decode("utf-8", "replace")
            final = headers == "all" or done.returncode == 0 or _certain(output, file["text"], job["headers"])
            answer = {"file": file["file"], "headers": headers, "code": done.returncode, "output": output}
            channel.send({**answer, "final": final, "wall_s": round(time.monotonic() - started, 3)})
            if final:
                break


def _certain(output: str, text: str, folders: list[str]) -> bool:
    """Whether more headers could not have helped."""
    if re.search(r"^ptxas (?:error|fatal)", output, re.MULTILINE):
        return True
    first = re.search(r"error: (.*)", output)
    undefined = re.fullmatch(r'identifier "(\w+)" is undefined', first[1].strip()) if first else None
    if undefined is None or re.search(r"^[ \t]*#[ \t]*if", text, re.MULTILINE):
        return False
    known = subprocess.run(
        ["grep", "-rqwFI", "-e", undefined[1], *folders], stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    return known.returncode == 1


def _write_few(folder: str, text: str, torch_include: str) -> None:
    """Small headers under the names of torch's large ones, with the operators that the text names."""
    names = set(re.findall(r"\b(?:torch|at)::(\w+)", text))
    operators = sorted(name for name in names if os.path.exists(os.path.join(torch_include, f"ATen/ops/{name}.h")))
    wanted = [f"ATen/ops/{name}.h" for name in operators] + ["torch/library.h"] * ("TORCH_LIBRARY" in text)
    content = _FEW.format(wanted="\n".join(f"#include <{path}>" for path in wanted))
    for name in _TORCH_HEADERS:
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(content if name == _TORCH_HEADERS[0] else f"#pragma once\n#include <{_TORCH_HEADERS[0]}>\n")
