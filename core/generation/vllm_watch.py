"""A core that hangs is ended, so that its requests hear of it as of one that died and it is started again.

vLLM notices when the core's process is gone, but not when that stands still: in a kernel that never ends, or in a
collective whose peer is lost. While requests run, the core sends something at every step. One step may be long, so that
silence alone says nothing: the workers are asked for an answer first, which they give between two steps.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import structlog

from core.generation import vllm_compat as compat

log = structlog.get_logger()


async def end_when_silent(core: Any, busy: Callable[[], bool], limit_s: float) -> None:
    """Returns when it has ended the core, or found it dead. busy: whether the core has requests that it could go on
    with."""
    since = time.monotonic()
    while True:
        await asyncio.sleep(limit_s / 8)
        now = time.monotonic()
        if not busy():
            since = now
        if now - max(since, compat.heard_at(core)) < limit_s:
            continue
        try:
            async with asyncio.timeout(limit_s):
                await core.collective_rpc("check_health")
            since = time.monotonic()
        except compat.dead_errors():
            return
        except TimeoutError:
            log.error("engine hangs", silent_s=round(time.monotonic() - compat.heard_at(core), 1))
            compat.kill(core)
            return
        except Exception as error:  # an answer: the core goes on, whatever is wrong with one of its workers
            log.warning("engine's health check failed", why=f"{type(error).__name__}: {error}"[:300])
            since = time.monotonic()
