"""`kernelmill tail` and `kernelmill top`: look into a run from another terminal, through nothing but its folder.

tail   what happened, one line each, and what happens from now on
top    the live picture that `kernelmill up` shows
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from bus import facts
from runners.usage import not_negative

POLL_S = 0.5
LEDGER_EVERY_S = 10.0
RECORD = "record"
"""Who tells what of the record is left out."""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    tail = subparsers.add_parser("tail", help="show what happens in a run, line by line")
    tail.add_argument("run_folder", help="the run's folder (runs/demo), or its name in runs/ (demo)")
    tail.add_argument(
        "-n", "--lines", type=not_negative, default=20, help="lines of the past to begin with (default 20)"
    )
    tail.add_argument(
        "--kind",
        action="append",
        choices=("step", *facts.ALL),
        metavar="KIND",
        help=f"only `step`, or facts of this kind; may be given several times: {', '.join(facts.ALL)}",
    )
    tail.add_argument("--no-follow", action="store_true", help="stop after what is there")
    tail.set_defaults(run=run_tail)
    top = subparsers.add_parser("top", help="show a run's live picture in this terminal")
    top.add_argument("run_folder", help="the run's folder (runs/demo), or its name in runs/ (demo)")
    top.add_argument("--once", action="store_true", help="print one picture and stop")
    top.set_defaults(run=run_top)


class Follower:
    """New whole lines of a growing file, as parsed JSON. Lines that are no JSON objects are passed over and counted."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.at = 0
        self.passed_over = 0

    def new(self) -> Iterator[dict[str, Any]]:
        from core.record import files

        for line, end in files.lines(self.path, self.at):
            self.at = end
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                value = None
            if isinstance(value, dict):
                yield value
            else:
                self.passed_over += 1


class Gaps:
    """What a reader of the record leaves out, each thing told once."""

    def __init__(self, folder: Path, followers: list[Follower]) -> None:
        self._folder, self._followers = folder, followers
        self._told: dict[Path, int] = {}
        self._begun = False

    def new(self) -> Iterator[str]:
        from core.record import cuts

        if not self._begun:
            self._begun = True
            yield from cuts.left_out(self._folder)
        for one in self._followers:
            if (more := one.passed_over - self._told.get(one.path, 0)) > 0:
                self._told[one.path] = one.passed_over
                lines = "1 line that is no record is" if more == 1 else f"{more} lines that are no records are"
                yield f"record/{one.path.name}: {lines} left out"


def run_tail(args: argparse.Namespace) -> int:
    from core.record.reading import steps_wanted

    folder = _folder(args, "tail")
    if folder is None:
        return 2
    followers = [Follower(folder / "record" / name) for name in ("facts.jsonl", "steps.jsonl")]
    wanted, gaps, steps = set(args.kind or ()), Gaps(folder, followers), steps_wanted(folder)
    first = True
    while True:
        rows = sorted((row for follower in followers for row in follower.new()), key=lambda row: row.get("at") or 0.0)
        kept = [row for row in rows if not wanted or kind_of(row) in wanted]
        for row in kept[-args.lines :] if first and args.lines else [] if first else kept:
            print(line_of(row), flush=True)
        if first and not args.no_follow and (line := waits_for(folder)):
            print(f"kernelmill tail: {folder}: {line}", file=sys.stderr, flush=True)
        first = False
        for line in gaps.new():
            print(f"kernelmill tail: {folder}: {line}", file=sys.stderr, flush=True)
        if args.no_follow or any(is_end(row, steps) for row in rows):
            return 0
        time.sleep(POLL_S)


def waits_for(folder: Path) -> str:
    """Why nothing may come for long: the run has stopped. Empty where it runs or is at its end."""
    from core.record.record import being_written
    from runners.standing import chain_of, standing

    ledger = chain_of(folder)
    if ledger is None or ledger.finished or being_written(folder) is not False:
        return ""
    return f"{standing(ledger, False)}; waiting until it goes on (Ctrl-C ends this)"


def kind_of(row: dict[str, Any]) -> str:
    """A fact's kind, or `step` for a record of the chain."""
    return "step" if row.get("type") == "step" else str(row.get("kind"))


def is_end(row: dict[str, Any], steps: int) -> bool:
    """Whether the run is at its end; one that finished before its `steps` were raised goes on."""
    return row.get("type") == "step" and row.get("kind") == "finished" and row.get("step", 0) >= steps


def line_of(row: dict[str, Any]) -> str:
    """A fact or a record of the chain for a person: `15:08:45  learner-1  died  actor=…`"""
    from runners.live import clean

    clock = time.strftime("%H:%M:%S", time.localtime(row.get("at") or 0.0))
    if row.get("type") == "step":
        return clean(f"{clock}  {'learner':12}  {_chain_line(row)}")
    data = " ".join(f"{name}={_short(value)}" for name, value in (row.get("data") or {}).items())
    return clean(f"{clock}  {row.get('actor', ''):12}  {row.get('kind', '')}  {data}".rstrip())


def _chain_line(row: dict[str, Any]) -> str:
    from core.flow.stages import short
    from runners.live import turns_text

    if row["kind"] == "incarnation":
        return f"took over as incarnation {row['incarnation']} after step {row['step']}"
    if row["kind"] == "rejected":
        reasons = sorted({reason for group in row.get("groups") or () for _, reason in group.get("rejected") or ()})
        count = len(row.get("groups") or ())
        what = "1 group" if count == 1 else f"{count} groups"
        tokens = _rejected_tokens(row.get("groups") or ())
        return f"rejected {what}{tokens} after step {row['step']}: {', '.join(reasons)}"
    if row["kind"] == "finished":
        return f"finished at step {row['step']}"
    metrics = row.get("metrics") or {}
    groups = row.get("groups") or []
    parts = [f"step {row['step']}"]
    if metrics.get("reward/mean") is not None:
        parts.append(f"reward {metrics['reward/mean']:.3f}")
    if by_turn := turns_text(metrics):
        parts.append(by_turn)
    if metrics.get("staleness/max") is not None:
        parts.append(f"staleness up to {metrics['staleness/max']:.0f}")
    trained, rejected = (sum(len(group.get(name) or ()) for group in groups) for name in ("trained", "rejected"))
    parts.append(f"{trained} trained, {rejected} rejected{_rejected_tokens(groups)}")
    if limit := short(metrics):
        parts.append(limit)
    return "  ".join(parts)


def _rejected_tokens(groups: Iterable[dict[str, Any]]) -> str:
    """What was sampled for nothing; records of before it was counted don't say."""
    tokens = sum(sum(group.get("rejected_tokens") or ()) for group in groups)
    return f" of {tokens:,} tokens" if tokens else ""


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:59] + "…"


def run_top(args: argparse.Namespace) -> int:
    from rich.console import Console

    from core.record import reading
    from core.record.files import RecordError
    from runners.live import View, render
    from runners.live_state import LiveState

    folder = _folder(args, "top")
    if folder is None:
        return 2
    state, source = LiveState(), events_of(folder)
    if args.once:
        state.feed(written_event(folder))
        for event in source():
            if event.get("actor") == RECORD:  # whole: the picture may be too narrow
                print(f"kernelmill top: {folder}: {event['text']}", file=sys.stderr)
            else:
                state.feed(event)
        state.feed({"type": "ledger", **reading.ledger(folder).as_dict()})
        Console().print(render(state, time.time()))
        return 0
    ledger_at = 0.0
    with View(state=state) as view:
        while not state.finished:
            now = time.time()
            for event in (written_event(folder), *source()):
                view.feed(event, now)
            if now - ledger_at > LEDGER_EVERY_S or state.finished:
                ledger_at = now
                try:
                    view.feed({"type": "ledger", **reading.ledger(folder).as_dict()}, now)
                except RecordError as error:
                    view.feed({"type": "error", "actor": "top", "text": str(error), "at": now}, now)
            view.refresh(now)
            time.sleep(POLL_S)
    return 0


def events_of(folder: Path) -> Callable[[], Iterator[dict[str, Any]]]:
    """A function that yields, at each call, the events (`runners.live_state`) that the folder has gained."""
    record = [Follower(folder / "record" / name) for name in ("facts.jsonl", "steps.jsonl")]
    gauges = Follower(folder / "record" / "metrics.jsonl")
    gaps = Gaps(folder, [*record, gauges])
    logs: dict[Path, Follower] = {}
    begun = False

    def new() -> Iterator[dict[str, Any]]:
        nonlocal begun
        if not begun:
            begun = True
            yield run_event(folder)
        for follower in record:
            yield from follower.new()
        for row in gauges.new():
            values = {name: value for name, value in row.items() if isinstance(value, int | float) and name != "at"}
            version = int(values.pop("version", -1))
            yield {"type": "beat", "actor": str(row.get("actor")), "at": row.get("at", 0.0), "version": version,
                   "gauges": values}  # fmt: skip
        for line in gaps.new():
            yield {"type": "error", "actor": RECORD, "text": line, "at": time.time()}
        for path in sorted((folder / "logs").glob("*.jsonl")):
            for entry in logs.setdefault(path, Follower(path)).new():
                if (event := error_of(entry, path.stem)) is not None:
                    yield event

    return new


def run_event(folder: Path) -> dict[str, Any]:
    """The `run` event, from config.json where it is there; beats come from the record, later than from the bus."""
    from core.record.record import METRICS_EVERY_S
    from core.run_folder import read_config

    path = folder / "config.json"
    config = read_config(path) if path.exists() else {}
    event = {
        "type": "run",
        "name": config.get("run", {}).get("name") or folder.resolve().name,
        "folder": str(folder),
        "steps": config.get("run", {}).get("steps", 0),
        "max_staleness": config.get("sampler", {}).get("max_staleness"),
    }
    if dead_after_s := config.get("bus", {}).get("dead_after_s"):
        event["dead_after_s"] = dead_after_s + 2 * METRICS_EVERY_S
    return {name: value for name, value in event.items() if value is not None}


def written_event(folder: Path) -> dict[str, Any]:
    """The `written` event of this moment."""
    from core.record.record import being_written

    return {"type": "written", "now": being_written(folder)}


def error_of(entry: dict[str, Any], actor: str) -> dict[str, Any] | None:
    """The `error` event in a log line, when its level is error or worse and no fact tells the same."""
    if "fact" in entry or str(entry.get("level", "")).lower() not in ("error", "critical", "exception"):
        return None
    text = str(entry.get("event", ""))
    if trace := entry.get("exception"):
        text += ": " + str(trace).strip().rsplit("\n", 1)[-1]
    stamp = entry.get("at", entry.get("timestamp"))
    return {"type": "error", "actor": str(entry.get("actor", actor)), "text": text, "at": seconds(stamp)}


def seconds(stamp: Any) -> float:
    """A log's time, seconds or ISO 8601, as seconds since the epoch; 0 when it has none."""
    if isinstance(stamp, int | float):
        return float(stamp)
    if isinstance(stamp, str):
        from datetime import datetime

        try:
            return datetime.fromisoformat(stamp).timestamp()
        except ValueError:
            return 0.0
    return 0.0


def _folder(args: argparse.Namespace, command: str) -> Path | None:
    from core.record.files import RecordError
    from core.record.reading import run_folder

    try:
        return run_folder(args.run_folder)
    except RecordError as error:
        print(f"kernelmill {command}: {error}", file=sys.stderr)
        return None
