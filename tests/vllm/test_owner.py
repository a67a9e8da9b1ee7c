"""kill -9 of the process that has an engine: its core and workers end too, and give the card back."""

import os
import subprocess
import sys
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
OWNER = """
import asyncio, sys, time
from core.generation.vllm_engine import VLLMEngine, VLLMSettings

async def main():
    engine = VLLMEngine(sys.argv[1], dtype="float32", context_tokens=256,
                        settings=VLLMSettings(eager=True, max_sequences=4))
    await engine.start()
    print("started", flush=True)
    await asyncio.sleep(600)

if __name__ == "__main__":
    asyncio.run(main())
"""
GONE_S = 30


def test_an_engine_ends_with_its_owner(policies, tmp_path):
    script = tmp_path / "owner.py"
    script.write_text(OWNER)
    owner = subprocess.Popen(
        [sys.executable, str(script), str(policies[0][0])], stdout=subprocess.PIPE, text=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    below = []
    try:
        assert owner.stdout is not None
        assert any("started" in line for line in owner.stdout)
        below = psutil.Process(owner.pid).children(recursive=True)
        assert any("EngineCore" in child.name() for child in below)
        owner.kill()
        owner.wait()
        cores = [child for child in below if "EngineCore" in child.name()]
        _, alive = psutil.wait_procs(cores, timeout=GONE_S)
        assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]
    finally:
        owner.kill()
        for process in below:
            if process.is_running():
                process.kill()
