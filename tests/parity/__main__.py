"""`make parity`: our losses, advantages and corrections beside those of other projects, on the same random tensors.

    python -m tests.parity [--folder build/parity] [--only trl,verl]

Makes an environment of its own (uv; the peers' releases pinned below, those that need a GPU to be installed in full
without their dependencies), compares in one process per peer, and prints a table; `results.json` holds the same. A peer
that can't be imported is a row with the reason, never silence. Exits 1 when a row that must be equal is not, when a
documented difference is gone, or when trl can't be compared. docs/parity.md explains every difference.

Python 3.12 is used where it is found (skyrl needs it), else the running one; KERNELMILL_PARITY_PYTHON names another.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[2]
PEER_TIMEOUT_S = 280
BASE = [
    "torch==2.13.0", "trl==1.16.0", "ray", "peft", "aiohttp", "httpx", "orjson", "tensordict", "hydra-core",
    "omegaconf", "codetiming", "cachetools", "pybase64", "torchdata", "pylatexenc", "loguru", "jaxtyping", "einops",
    "colorlog", "tenacity", "cloudpathlib", "flask", "lark", "uvloop", "numba", "pillow", "aiofiles", "openai",
]  # fmt: skip
"""trl with its dependencies, and what the others import on the way to their losses."""
PEERS = {
    "trl": [],
    "verl": ["verl==0.9.1"],
    "areal": ["areal==1.0.4"],
    "skyrl": ["skyrl==0.4.0", "skyrl-gym==0.4.0"],
    "openrlhf": ["openrlhf==0.11.2"],
}
"""Installed without dependencies: those name vllm, sglang, deepspeed or flash-attn, which need a GPU."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.parity", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "parity", help="environment and results")
    parser.add_argument("--only", default=",".join(PEERS), help="peers, comma-separated")
    args = parser.parse_args()
    names = args.only.split(",")
    unknown = set(names) - set(PEERS)
    if unknown:
        parser.error(f"unknown peer {', '.join(sorted(unknown))}; known: {', '.join(PEERS)}")

    started = time.monotonic()
    trouble: dict[str, str] = {}
    python, path = environment(args.folder, names, trouble), alone(args.folder)
    rows: list[dict] = []
    versions: dict[str, str] = {}
    with ThreadPoolExecutor(2) as pool:  # most of the time is spent importing the peers
        answers = dict(zip(names, pool.map(lambda name: compare(python, args.folder, path, name), names), strict=True))
    for name, answer in answers.items():
        if isinstance(answer, str):
            trouble.setdefault(name, answer)
        else:
            rows += answer["rows"]
            versions |= answer["versions"]
    took = time.monotonic() - started

    results = {"versions": versions, "rows": rows, "not_compared": trouble, "took_s": round(took, 1)}
    (args.folder / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    print(table(results))
    bad = [row for row in rows if not row["ok"]]
    for row in bad:
        print(f"NOT AS DOCUMENTED: {row['peer']} {row['what']}: {row['note']}", file=sys.stderr)
    return 1 if bad or ("trl" in names and "trl" in trouble) else 0


def compare(python: str, folder: Path, path: Path, name: str) -> dict | str:
    """One peer's rows and versions, or why there are none. path: where `parity` is found (`alone`)."""
    out = folder / f"{name}.json"
    out.unlink(missing_ok=True)
    surroundings = {"PYTHONPATH": f"{ROOT}:{path}", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1",
                    "HF_HUB_OFFLINE": "1"}  # fmt: skip
    try:
        done = subprocess.run(
            [python, "-m", "parity.compare", name, str(out)], cwd=ROOT, capture_output=True, text=True,
            timeout=PEER_TIMEOUT_S, env=os.environ | surroundings,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"no answer within {PEER_TIMEOUT_S} s"
    if done.returncode == 0:
        return json.loads(out.read_text())
    return (done.stderr.strip() or "no output").splitlines()[-1]


def alone(folder: Path) -> Path:
    """A folder in which `parity` is the only package: a peer that looks for vllm must not find our tests of that name,
    and peers ship a package `tests` of their own."""
    path = folder.resolve() / "path"
    path.mkdir(exist_ok=True)
    link = path / "parity"
    link.unlink(missing_ok=True)
    link.symlink_to(Path(__file__).parent)
    return path


def pythons() -> list[str]:
    """What to make the environment with, best first: skyrl needs 3.12, which uv can't find where pyenv keeps it."""
    wanted = os.environ.get("KERNELMILL_PARITY_PYTHON")
    if wanted:
        return [wanted]
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    return ["3.12", *map(str, sorted(pyenv.glob("versions/3.12.*/bin/python"))), sys.executable]


def environment(folder: Path, names: list[str], trouble: dict[str, str]) -> str:
    """Path of a Python with the peers in it. Installing again what is there takes a second."""
    uv = next((str(path) for path in (ROOT / ".uv/bin/uv",) if path.exists()), None) or shutil.which("uv")
    if uv is None:
        raise SystemExit("make parity needs uv: run `make setup` first, or install it (pip install uv)")
    venv = folder / "venv"
    python = str(venv / "bin" / "python")
    if not Path(python).exists():
        folder.mkdir(parents=True, exist_ok=True)
        tries = pythons()
        if not any(run([uv, "venv", "--quiet", "--python", each, str(venv)], within_s=120) is None for each in tries):
            raise SystemExit(f"no environment could be made with {' or '.join(tries)}: set KERNELMILL_PARITY_PYTHON")
    problem = run([uv, "pip", "install", "--quiet", "--python", python, *BASE])
    if problem:
        raise SystemExit(f"trl and what it needs could not be installed: {problem}")
    for name in names:
        if PEERS[name]:
            problem = run([uv, "pip", "install", "--quiet", "--no-deps", "--python", python, *PEERS[name]])
            if problem:
                trouble[name] = f"not installed: {problem}"
    return python


def run(command: list[str], within_s: float = 540) -> str | None:
    """None when the command succeeds, else the first line of its complaint that says something."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=within_s)
    except subprocess.TimeoutExpired:
        return f"no answer within {within_s:.0f} s"
    if done.returncode == 0:
        return None
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return next(
        (line for line in lines if "ecause" in line or "error" in line.lower()), lines[-1] if lines else "failed"
    )


def table(results: dict) -> str:
    """Markdown, as it stands in docs/parity.md."""
    lines = [
        "versions: " + ", ".join(f"{name} {version}" for name, version in sorted(results["versions"].items())),
        "",
        "| peer | what | max abs difference: value | gradient | result | note |",
        "|---|---|---|---|---|---|",
    ]
    for row in results["rows"]:
        gradient = "" if row["gradient"] is None else f"{row['gradient']:.1e}"
        lines.append(
            f"| {row['peer']} | {row['what']} | {row['value']:.1e} | {gradient} | {row['result']} | {row['note']} |"
        )
    lines += [f"| {name} | not compared | | | | {reason} |" for name, reason in results["not_compared"].items()]
    lines += ["", f"{len(results['rows'])} comparisons in {results['took_s']} s"]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
