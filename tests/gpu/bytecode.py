"""Bytecode for packages that were unpacked without it.

vLLM starts up to three processes, each of which imports thousands of files. Without bytecode every one of them compiles
them all over again (docs/rollout.md, "The start"), above all where Python is told not to write any.
"""

import importlib.util
import subprocess
import sys
import time
from pathlib import Path


def compile_missing(package: str = "vllm") -> float:
    """Compiles the folder that holds `package`, by all cores, if the package has no bytecode. Returns the seconds."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None or Path(importlib.util.cache_from_source(spec.origin)).exists():
        return 0.0
    began = time.monotonic()
    site = Path(spec.origin).parents[1]
    # Files for another Python among them can't be compiled, and needn't be.
    subprocess.run([sys.executable, "-m", "compileall", "-q", "-q", "-j", "0", str(site)], check=False)
    return time.monotonic() - began
