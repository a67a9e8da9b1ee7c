"""Is a GPU the same one inside a candidate's walls: `python -m tests.gpu.cards_in_the_walls`, best on several GPUs.

For every GPU, for every way to name it in CUDA_VISIBLE_DEVICES and for both kinds of walls a process judges a right
kernel and a wrong one there (core.evaluation.proof: parent and child share memory, which only works on one GPU), and a
cold probe is made. Prints one JSON line: what the driver tells, what CUDA numbers, and each case with its trouble,
which is empty where all is well. `untold`: as where the driver tells no UUID. Exit code 1 where there is any trouble.
"""

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any, get_args

from core.evaluation.walls import gpu as gpu_walls
from core.evaluation.walls.namespaces import Level

WAYS = ("number", "uuid", "beginning", "first of two", "untold")
WAIT_S = 240.0
UUIDS = """
import torch
print(*(torch.cuda.get_device_properties(number).uuid for number in range(torch.cuda.device_count())))
"""


def named(way: str, number: int, uuids: list[str]) -> str:
    """CUDA_VISIBLE_DEVICES for GPU `number`."""
    if way == "uuid":
        return uuids[number]
    if way == "beginning":
        return uuids[number][:12]
    return f"{number},{(number + 1) % len(uuids)}" if way == "first of two" else str(number)


def numbered() -> list[str]:
    """UUIDs in the order of CUDA's numbers, asked in a process of its own."""
    environment = {**os.environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    done = subprocess.run([sys.executable, "-c", UUIDS], env=environment, capture_output=True, text=True, check=True)
    return list(map(whole, done.stdout.split()))


def whole(uuid: object) -> str:
    return f"GPU-{str(uuid).removeprefix('GPU-')}"


def one(level: Level, way: str, uuid: str) -> str:
    """What is wrong with the first GPU that this process is shown, which must be that one."""
    if way == "untold":
        told = tuple(gpu_walls.Card("", card.file) for card in gpu_walls.cards())
        gpu_walls.cards = lambda *_: told  # type: ignore[assignment]
    os.environ.update(gpu_walls.one_gpu(0))
    import torch

    from core.evaluation.gpu import probe
    from core.evaluation.gpu.stage import GpuSettings, GpuStage
    from core.evaluation.proof import prove
    from core.evaluation.verdict import Verdict
    from core.evaluation.walls import sandbox

    class Untimed:
        def judge(self, task: Any, candidate: str, key: str) -> Verdict:
            return stage.judge(task, candidate, key, timed=False)

    if (mine := whole(torch.cuda.get_device_properties(0).uuid)) != uuid:
        return f"the trusted process has {mine}"
    stage = GpuStage(GpuSettings(warm_up=False, spare=False), sandbox.probe(level), slot=200 + 2 * (os.getpid() % 500))
    stage.start()
    try:
        stage.wait_ready()
        prove(Untimed())
    except OSError as error:
        return str(error)
    finally:
        stage.stop()
    return probe.cold("cuda:0").why


def tried(level: str, way: str, number: int, uuids: list[str]) -> dict[str, Any]:
    shown = named(way, number, uuids)
    words = [sys.executable, "-m", "tests.gpu.cards_in_the_walls", "--one", level, way, uuids[number]]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": shown, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    try:
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=WAIT_S, check=False)
        said = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else (done.stderr or "?").strip()[-300:]
    except (subprocess.TimeoutExpired, ValueError, IndexError) as error:
        said = f"{type(error).__name__}: {error}"
    return {"gpu": number, "walls": level, "way": way, "shown": shown, "trouble": said}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one", nargs=3, metavar=("WALLS", "WAY", "UUID"), help="in this process, as it is started")
    said = parser.parse_args()
    if said.one:
        print(json.dumps(one(*said.one)))
        return 0
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    uuids = numbered()
    cases = [(level, way, number, uuids) for level in get_args(Level) for way in WAYS for number in range(len(uuids))]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda case: tried(*case), cases))
    cards = [list(card) for card in gpu_walls.cards()]
    print(json.dumps({"cuda": uuids, "driver": cards, "agree": [card[0] for card in cards] == uuids, "cases": found}))
    return int(any(case["trouble"] for case in found))


if __name__ == "__main__":
    sys.exit(main())
