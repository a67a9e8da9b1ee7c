"""A run as its messages tell it, for the tests of everything that looks at runs: built from the bus's own structs, with
a rollback, tombstones, a death and hostile kernels in it."""

import math
import random
from collections.abc import Iterator
from pathlib import Path

import msgspec

from bus.messages import Beat, Ended, Fact, GroupOutcome, Step
from core.columns import pack
from core.episodes.episode import Episode, Turn, tombstone
from core.episodes.heldout_figures import HeldOut
from core.episodes.metrics import batch_metrics
from core.evaluation.verdict import Verdict
from core.record import heldout
from core.record.record import EPISODES, FACTS, STEPS, Record

START = 1_750_000_000.0
STEP_S = 4.2
OPERATORS = ("relu", "gelu", "softmax", "row_sum", "add_mul", "sigmoid_scale", "rms_norm", "clamp_add")
TASK = '''import torch
import torch.nn as nn


class Model(nn.Module):
    """{name}: x is [rows, columns], float32."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) * 2.0 + 1.0


def get_inputs():
    return [torch.randn(128, 1024)]


def get_init_inputs():
    return []
'''
KERNEL = '''import torch
import triton
import triton.language as tl


@triton.jit
def {name}_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """{name}"""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    {load}
    y = tl.maximum(x, 0.0) * 2.0 + 1.0  # fused
    tl.store(out_ptr + offsets, y, mask=offsets < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        {name}_kernel[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), BLOCK=1024)
        return out
'''
HOSTILE = "</code></pre><script>document.title='owned'</script><img src=x onerror=alert(1)>"


def source(name: str) -> str:
    return TASK.format(name=name)


def kernel(name: str, right: bool) -> str:
    mask = "x = tl.load(x_ptr + offsets, mask=offsets < n)" if right else "x = tl.load(x_ptr + offsets)"
    return KERNEL.format(name=name, load=mask)


class Play:
    """Makes episodes of a policy that gets better; `skill` from 0 to 1."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def episode(self, group_id: str, index: int, name: str, skill: float, version: int) -> Episode:
        rng = self.rng
        task_id = f"composed/{name}"
        if group_id != "" and rng.random() < 0.02:
            return tombstone(group_id, index, task_id, rng.choice(("infra", "deadline")), "the judge did not answer")
        turns: list[Turn] = []
        for number in range(3):
            right = rng.random() < (0.3 + 0.6 * skill if number == 0 else 0.2 + 0.5 * skill)
            turns.append(self.turn(number, name, right, max(0, version - rng.choice((0, 0, 1, 2)))))
            if right:
                break
        return Episode(
            group_id=group_id,
            index=index,
            task_id=task_id,
            level=1 + index % 2,
            turns=tuple(turns),
            end="success" if turns[-1].verdict and turns[-1].verdict.correct else "max_turns",
            generation_s=2.0 + rng.random() * len(turns),
            judging_s=0.4 + 0.3 * rng.random() * len(turns),
        )

    def turn(self, number: int, name: str, right: bool, version: int) -> Turn:
        rng = self.rng
        tokens = rng.randint(120, 220)
        speedup = round(math.exp(rng.gauss(0.3, 0.3)), 2) if right else None
        hostile = rng.random() < 0.05
        verdict = Verdict(
            candidate_key=f"{rng.getrandbits(64):016x}",
            kind="pass" if right else "fail",
            stage="" if right else "correctness",
            category="" if right else "wrong_value",
            compiled=True,
            correct=right,
            feedback="" if right else f"37 of 1024 values differ, largest at [3, 1023] {HOSTILE if hostile else ''}",
            speed_kind="modelled" if right else "",
            speedup=speedup,
            speedup_low=speedup,
        )
        return Turn(
            index=number,
            prompt_ids=pack("ids", range(200)),
            completion_ids=pack("ids", [7] * tokens),
            logprobs=pack("logprobs", [-0.3] * tokens),
            versions=pack("versions", [version] * tokens),
            candidate=kernel(name, right) + (f"# {HOSTILE}\n" if hostile else ""),
            verdict=verdict,
            score=0.1 if speedup is None else 0.4 + min(max(speedup - 1, 0), 2),
        )


def messages(steps: int, seed: int = 0, groups: int = 4, size: int = 4) -> Iterator[Fact | Ended | Step | Beat]:
    """The run's messages in the order of time. The learner dies once in the middle and goes back a few steps."""
    play, run_id, at = Play(seed), "demo", START
    number, incarnation, tokens = 0, 0, 0.0
    done: list[list[tuple[str, int, list[Episode]]]] = []
    waiting: list[tuple[str, int, list[Episode]]] = []
    for kind in ("sampler", "generator", "evaluator", "learner"):
        yield Fact(run_id=run_id, kind="joined", actor=f"{kind}-1", at=at, data={"kind": kind, "pid": 100, "host": "h"})
    yield Step(run_id=run_id, kind="incarnation", incarnation=0, step=0, version=0, at=at)
    crashed = False
    while len(done) < steps:
        step = len(done) + 1
        while len(waiting) < groups:
            gid, name = f"{seed:02x}{number:030x}", OPERATORS[number % len(OPERATORS)]
            data = {"group_id": gid, "admission": number, "size": size, "task_id": f"composed/{name}", "level": 1}
            yield Fact(run_id=run_id, kind="admitted", actor="sampler-1", at=at, data=data, trace=gid)
            skill = 1 - math.exp(-3.0 * step / steps)
            episodes = [play.episode(gid, index, name, skill, step - 1) for index in range(size)]
            for episode in episodes:
                yield Ended(run_id=run_id, episode=episode, admission=number, size=size, generator="generator-1")
            waiting.append((gid, number, episodes))
            number += 1
        at += STEP_S * (0.9 + 0.2 * play.rng.random())
        tokens += 4000
        gauges = {"tokens_total": tokens, "running": 12.0, "waiting": 3.0, "loop_lag_ms": 2.0, "rss_mb": 911.0}
        yield Beat(run_id=run_id, kind="generator", actor="generator-1", pid=1, host="h", at=at, version=step - 1,
                   gauges=gauges)  # fmt: skip
        yield Beat(run_id=run_id, kind="evaluator", actor="evaluator-1", pid=2, host="h", at=at,
                   gauges={"verdicts_total": tokens / 160, "busy": 2.0, "rss_mb": 512.0})  # fmt: skip
        yield Beat(run_id=run_id, kind="learner", actor="learner-1", pid=3, host="h", at=at, version=step - 1)
        taken, waiting = waiting[:groups], waiting[groups:]
        yield _step(run_id, incarnation, step, taken, at, play.rng)
        done.append(taken)
        if not crashed and step == max(2, steps // 2):
            crashed, incarnation, back = True, 1, max(1, step - 3)
            yield Fact(run_id=run_id, kind="died", actor="sampler-1", at=at,
                       data={"kind": "learner", "actor": "learner-1", "handed_on": 0})  # fmt: skip
            yield Step(run_id=run_id, kind="incarnation", incarnation=1, step=back, version=back, at=at + 3)
            waiting = [group for taken in done[back:] for group in taken] + waiting
            del done[back:]
    gid, name = f"{seed:02x}{number:030x}", OPERATORS[0]
    data = {"group_id": gid, "admission": number, "size": size, "task_id": f"composed/{name}", "level": 1}
    yield Fact(run_id=run_id, kind="admitted", actor="sampler-1", at=at, data=data, trace=gid)
    for index in range(size):
        lost = tombstone(gid, index, f"composed/{name}", "poison", "three workers died on it")
        yield Ended(run_id=run_id, episode=lost, admission=number, size=size)
    rejected = tuple((index, "poison") for index in range(size))
    outcome = GroupOutcome(group_id=gid, admission=number, rejected=rejected, rejected_tokens=(300,) * size)
    yield Step(
        run_id=run_id, kind="rejected", incarnation=incarnation, step=steps, version=steps, groups=(outcome,), at=at
    )
    yield Step(run_id=run_id, kind="finished", incarnation=incarnation, step=steps, version=steps, at=at)


def _step(
    run_id: str, incarnation: int, step: int, taken: list[tuple[str, int, list[Episode]]], at: float, rng: random.Random
) -> Step:
    outcomes = tuple(
        GroupOutcome(
            group_id=gid,
            admission=admission,
            trained=tuple(e.index for e in episodes if e.trainable),
            rejected=tuple((e.index, e.end) for e in episodes if not e.trainable),
        )
        for gid, admission, episodes in taken
    )
    metrics = batch_metrics([e for _, _, episodes in taken for e in episodes], version=step - 1, max_turns=3) | {
        "time/wait_s": 1.0 + rng.random(),
        "time/learner_s": 2.1 + 0.2 * rng.random(),
        "time/publish_s": 0.15 + 0.05 * rng.random(),
        "time/prepare_exposed_s": 0.2 * rng.random(),
        "time/publish_exposed_s": 0.02 + 0.01 * rng.random(),
        "time/checkpoint_exposed_s": 0.4 * (step % 10 == 0),
        "loss": rng.gauss(0.0, 0.01),
        "entropy": 0.5 + 0.1 * rng.random(),
        "grad_norm": 1.0 + rng.random() if step != 3 else math.nan,
        "applied": float(step != 3),
    }
    return Step(run_id=run_id, kind="step", incarnation=incarnation, step=step, version=step, groups=outcomes,
                metrics=metrics, at=at)  # fmt: skip


def write_run(folder: Path, steps: int = 60, seed: int = 0, held_out_tasks: int = 40) -> Path:
    """A run folder as the recorder leaves it."""
    with Record(folder) as record:
        rows = []
        batches: dict[str, list] = {FACTS: [], STEPS: [], EPISODES: []}
        for message in messages(steps, seed):
            if isinstance(message, Beat):
                rows.append({"at": message.at, "actor": message.actor, **message.gauges})
            else:
                stream = {Fact: FACTS, Step: STEPS, Ended: EPISODES}[type(message)]
                batches[stream].append(message)
        record.append_facts(batches[FACTS], last_seq=len(batches[FACTS]))
        record.append_episodes(batches[EPISODES], last_seq=len(batches[EPISODES]))
        record.append_steps(batches[STEPS], last_seq=len(batches[STEPS]))
        record.append_metrics(rows)
    for name, skill, version in ((heldout.BEFORE, 0.1, 0), (heldout.AFTER, 0.95, steps)):
        play = Play(seed + 1)
        names = [f"{OPERATORS[n % len(OPERATORS)]}_{n}" for n in range(held_out_tasks)]
        episodes = [play.episode("", index, name, skill, version) for index, name in enumerate(names)]
        sources = {f"composed/{name}": source(name) for name in names}
        made = HeldOut.of(episodes, version=version, step=version, sources=sources)
        heldout.save(made, folder / name)
    config = {"run": {"name": "demo", "seed": seed, "steps": steps}, "sampler": {"max_staleness": 2, "group_size": 4},
              "learner": {"lr": 1e-4, "betas": [0.9, 0.999]}, "bus": {"url": "", "token": "s3cret"}}  # fmt: skip
    (folder / "config.json").write_bytes(msgspec.json.encode(config))
    return folder
