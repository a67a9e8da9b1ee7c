"""How long judging may take at most: the one place where deadlines of different rooms are added up. No torch here.

A candidate's own time is in the settings. What comes on top is here and in gpu.health; whoever waits for an answer (the
pool for its worker, a gateway for its client) takes `longest_s`, so that nobody gives up on what is still under way.
"""

import msgspec

from core.evaluation.gpu import health as gpu_health
from core.evaluation.settings import JudgeSettings
from core.evaluation.walls import held_up

BUILD_S = 120.0
"""For all compilers of one candidate's CUDA C++: torch's whole headers take 20 to 40 s of processor time a file."""
BASELINE_S = 300.0
"""For one compiled baseline, compilation and everything; once per task, GPU and version."""
OTHERS_S = 120.0
"""Waiting for the GPU's lease, preparing the task and comparing, in one attempt."""
ZYGOTE_S = 60.0
"""A zygote's restart and the task's own references, in one attempt of the CPU tier."""


def longest_s(settings: JudgeSettings) -> float:
    """How long a worker may take for one answer before it counts as stuck."""
    own_s = held_up.most_s(settings.wall_s + settings.compile_wall_s)
    found = (settings.retries + 1) * (own_s + ZYGOTE_S) + ZYGOTE_S
    if not settings.on_gpu:
        return found
    compiled = {name for name in (*settings.baselines, settings.baseline) if name != "eager"}
    attempt_s = settings.gpu_wall_s + BUILD_S + OTHERS_S
    return found + gpu_health.ATTEMPTS * attempt_s + BASELINE_S * len(compiled) + gpu_health.WAIT_S


def in_words(settings: JudgeSettings, wall: str) -> str:
    """How `longest_s` comes about, for a person who sets `wall`."""
    times = held_up.most_s(1.0)
    found = (
        f"{settings.retries + 1} tries of {times:g} x ({wall} {settings.wall_s:g} s + {settings.compile_wall_s:g} s "
        f"for compilers), so long only on a busy machine, and {settings.retries + 2} starts of {ZYGOTE_S:g} s"
    )
    rest_s = longest_s(settings) - longest_s(msgspec.structs.replace(settings, device_class="cpu", speed="none"))
    return f"{found}; and {rest_s:.0f} s for the GPU" if settings.on_gpu else found
