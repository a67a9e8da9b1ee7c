"""Trackers: where a step's metrics go besides the record. `jsonl` is always on; `wandb` is the usual second one.

One run folder is one wandb run, whatever restarts: its id is made from the run's id. Without WANDB_API_KEY wandb works
offline, and then nothing leaves the machine: files under run folder/wandb that `wandb leet` shows and `wandb sync`
uploads later. Steps may come twice after a rollback, so `step` is a metric and the x axis, not wandb's own counter.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Protocol, cast

import msgspec

from core.identity import digest
from core.record import files
from core.record.redact import redacted

WandbMode = Literal["online", "offline", "disabled"]
MODES = ("auto", "offline", "online", "disabled")


class TrackerError(ValueError):
    """A tracker that can't work as configured; the text is one line for the person at the keyboard."""


class Tracker(Protocol):
    """Takes figures step by step. Not for use from several threads."""

    def log(self, step: int, metrics: Mapping[str, float | None], at: float) -> None:
        """Figures of one step; `at` in seconds since the epoch. None (not a finite number) is left out."""
        ...

    def finish(self, summary: Mapping[str, float]) -> None:
        """The run is over; `summary` is shown beside its name. Call once."""
        ...


class JsonlTracker:
    """One line per step in run folder/record/tracked.jsonl: {"step": 3, "at": 1.7e9, "reward/mean": 0.4, ...}.

    After a rollback a step's line comes again; the last one counts."""

    def __init__(self, run_folder: str | Path) -> None:
        path = Path(run_folder) / "record" / "tracked.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = 0
        for _, end in files.lines(path):
            whole = end
        self._appender = files.Appender(path, whole)

    def log(self, step: int, metrics: Mapping[str, float | None], at: float) -> None:
        row = {"step": step, "at": at, **known(metrics)}
        self._appender.append([msgspec.json.encode(row) + b"\n"])

    def finish(self, summary: Mapping[str, float]) -> None:
        self._appender.append([msgspec.json.encode({"summary": dict(summary)}) + b"\n"])
        self._appender.close()


class WandbTracker:
    """Weights & Biases. Imports wandb (0.6 s) when it is made, not before."""

    def __init__(
        self,
        run_folder: str | Path,
        *,
        run_id: str,
        name: str,
        project: str,
        mode: WandbMode,
        config: Mapping[str, Any],
    ) -> None:
        """`mode`: online or offline (see `wandb_mode`). Credentials in `config` are left out."""
        if mode == "offline":
            # wandb's own crash reports would be network calls too; read when it is imported.
            os.environ["WANDB_ERROR_REPORTING"] = "false"
        import wandb

        settings = wandb.Settings(silent=True, console="off", disable_git=True, disable_code=True, x_disable_stats=True)
        self._run = wandb.init(
            id=digest(run_id, size=8),
            resume="allow" if mode == "online" else None,
            name=name,
            project=project,
            dir=str(run_folder),
            config=redacted(config),
            mode=mode,
            settings=settings,
        )
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, metrics: Mapping[str, float | None], at: float) -> None:
        self._run.log({"step": step, "at": at, **known(metrics)})

    def finish(self, summary: Mapping[str, float]) -> None:
        self._run.summary.update(dict(summary))
        self._run.finish()


def wandb_mode(configured: str, environment: Mapping[str, str]) -> WandbMode:
    """`online`, `offline` or `disabled`. WANDB_MODE wins over the config; `auto` is online when there is a
    WANDB_API_KEY. Raises TrackerError for `online` without one, which would stop to ask for it."""
    wanted = environment.get("WANDB_MODE") or configured
    wanted = {"dryrun": "offline", "run": "online", "shared": "online"}.get(wanted, wanted)
    if wanted not in MODES:
        raise TrackerError(f"wandb mode {wanted!r} is unknown; use one of {', '.join(MODES)}")
    has_key = bool(environment.get("WANDB_API_KEY"))
    if wanted == "auto":
        return "online" if has_key else "offline"
    if wanted == "online" and not has_key:
        raise TrackerError(
            "wandb is to run online, but WANDB_API_KEY is not set: set it, or use recorder.wandb = 'offline'"
        )
    return cast(WandbMode, wanted)


def open_trackers(
    run_folder: str | Path,
    *,
    run_id: str,
    name: str,
    project: str,
    wandb: str,
    config: Mapping[str, Any],
    environment: Mapping[str, str] | None = None,
) -> list[Tracker]:
    """The trackers of a run: jsonl, and wandb unless it is disabled. `wandb` is the config's mode (one of MODES)."""
    mode = wandb_mode(wandb, os.environ if environment is None else environment)
    trackers: list[Tracker] = [JsonlTracker(run_folder)]
    if mode != "disabled":
        trackers.append(WandbTracker(run_folder, run_id=run_id, name=name, project=project, mode=mode, config=config))
    return trackers


def known(metrics: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if value is not None}
