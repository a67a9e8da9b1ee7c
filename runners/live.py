"""The terminal view: `render(state, now)` is a pure picture of a `LiveState`; `View` shows it.

On a terminal the picture is redrawn in place; elsewhere (a log file, CI) each step is one line, and so is each error;
where nothing happened for half a minute, a line tells what is under way.
"""

import time
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from core.flow import stages
from runners.live_state import ActorState, LiveState
from runners.pulse import EVERY_S
from runners.pulse import lasting as duration

BARS = "▁▂▃▄▅▆▇█"
WIDE = 110
"""From this many columns on, learning and flow stand side by side."""
HEALTH_STYLES = {
    "ok": "green",
    "late": "yellow",
    "silent": "bold red",
    "failed": "bold red",
    "restarting": "yellow",
    "stopped": "dim",
    "left": "dim",
    "gone": "dim",
}


def render(state: LiveState, now: float) -> RenderableType:
    """The whole picture at `now` (seconds since the epoch), for any width from 60 columns on."""
    return _Picture(state, now)


class _Picture:
    def __init__(self, state: LiveState, now: float) -> None:
        self.state, self.now = state, now

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        state, now = self.state, self.now
        wide = options.max_width >= WIDE
        learning = Panel(
            _learning(state, (options.max_width // 2 if wide else options.max_width) - 38),
            title="learning",
            title_align="left",
        )
        flow = Panel(_flow(state, now), title="flow", title_align="left", border_style="dim")
        yield _header(state, now, options.max_width)
        if wide:
            both = Table.grid(expand=True)
            both.add_column(ratio=1)
            both.add_column(ratio=1)
            both.add_row(learning, flow)
            yield both
        else:
            yield learning
            yield flow
        yield Panel(_actors(state, now, wide), title="actors", title_align="left", border_style="dim")
        if state.errors:
            yield Panel(_errors(state), title="trouble", title_align="left", border_style="red")


def _header(state: LiveState, now: float, width: int) -> RenderableType:
    total = max(state.steps_total, state.done, 1)
    if state.finished:
        left = "finished"
    elif state.stopped:
        left = "stopped"
    else:
        left_s = state.left_s(now)
        left = f"{duration(left_s)} left" if left_s is not None else state.note or "warming up"
    grid = Table.grid(expand=True, padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(ratio=1)
    grid.add_column(no_wrap=True, justify="right")
    run = Text.assemble(("kernelmill ", "bold"), (clean(state.name), "bold cyan"))
    ran_s = state.ran_s(now)
    ran = f"{duration(ran_s)} · " if ran_s is not None else ""
    steps = Text.assemble(("step ", "dim"), (f"{state.done}/{state.steps_total or '?'}", "bold"), f"  {ran}{left}")
    grid.add_row(
        run, ProgressBar(total=total, completed=state.done, complete_style="cyan", finished_style="green"), steps
    )
    note = Text(clean(state.note), style="italic", no_wrap=True, overflow="ellipsis")
    return Group(grid, note) if state.note and left != state.note else grid


def _learning(state: LiveState, spark_width: int) -> RenderableType:
    table = _rows()
    rewards = state.series("reward/mean")
    if not rewards:
        table.add_row("reward", Text("no step yet", style="dim"))
        return table
    mean = state.moving_mean("reward/mean")
    # The figures come first: on a narrow terminal it is the line that gets short.
    figures = Text.assemble((f"{rewards[-1]:.3f}", "bold"), f"  mean {mean:.3f}  ")
    table.add_row("reward", figures + Text(sparkline(rewards, max(8, min(spark_width, 60))), style="cyan"))
    by_turn = turn_series(state.latest)
    if by_turn:
        parts: list[Any] = []
        for number, share in by_turn:
            parts += [(f"turn {number} " if number == 1 else f"  by turn {number} ", "dim"), (percent(share), "bold")]
        table.add_row("correct", Text.assemble(*parts))
    if state.heldout:
        table.add_row("held-out", heldout_line(state))
    line = []
    if (turns := state.latest.get("turns/mean")) is not None:
        line.append(f"{turns:.2f} per episode")
    if (repair := state.latest.get("repair/turn_2")) is not None:
        line.append(f"turn 2 repairs {percent(repair)}")
    table.add_row("turns", "  ".join(line) or "–")
    if (speed := state.latest.get("speedup/geomean")) is not None:
        table.add_row("speed", f"{speed:.2f}× over the baseline, of correct kernels")
    bound = f" of at most {state.max_staleness}" if state.max_staleness is not None else ""
    mean_lag, max_lag = state.latest.get("staleness/mean"), state.latest.get("staleness/max")
    if mean_lag is not None and max_lag is not None:
        over = state.max_staleness is not None and max_lag > state.max_staleness
        table.add_row("staleness", Text(f"mean {mean_lag:.2f}  max {max_lag:.0f}{bound}", style="red" if over else ""))
    return table


def _flow(state: LiveState, now: float) -> RenderableType:
    table = _rows()
    queues = [f"{name} {count}" for name, count in state.waiting().items()]
    table.add_row("waiting", "  ".join(queues) or Text("–", style="dim"))
    rates = rates_words(state, now)
    table.add_row("rates", "  ".join(rates) or Text("–", style="dim"))
    times = [
        f"{label} {state.latest[name]:.1f} s"
        for label, name in (
            ("generate", "time/generation_s"),
            ("judge", "time/judging_s"),
            ("learn", "time/learner_s"),
            ("wait", "time/wait_s"),
        )
        if state.latest.get(name) is not None
    ]
    if times:
        table.add_row("times", "  ".join(times))
    if limit := stages.words(state.latest):
        table.add_row("limit", limit)
    account = state.ledger.get("episodes")
    if account:
        rejected = sum(account["rejected"].values())
        submitted, trained, pending = (account[name] for name in ("submitted", "trained", "pending"))
        text = f"{submitted} = {trained} trained + {rejected} rejected + {pending} pending"
        if state.ledger.get("balanced", True):
            table.add_row("ledger", text)
        else:
            table.add_row("ledger", Text(f"NOT balanced: {text}", style="bold red"))
    return table


def _actors(state: LiveState, now: float, wide: bool) -> RenderableType:
    table = Table(box=None, expand=True, pad_edge=False, header_style="dim")
    for name in ("actor", "health"):
        table.add_column(name, no_wrap=True)
    for name in ("beat", "version", "held", "restarts"):
        table.add_column(name, no_wrap=True, justify="right")
    table.add_column("doing", ratio=1, no_wrap=True, overflow="ellipsis")
    if not state.actors:
        return Text("none yet", style="dim")
    for name, actor in sorted(state.actors.items()):
        health = actor.health(now, state.dead_after_s)
        if state.finished and health in ("late", "silent"):
            health = "left"  # the recorder leaves last: nobody writes it down
        elif state.stopped and health in ("ok", "late", "silent"):
            health = "gone"
        table.add_row(
            Text(clean(name)),
            Text(health, style=HEALTH_STYLES.get(health, "")),
            f"{max(0.0, now - actor.beat_at):.0f} s" if actor.beat_at is not None else "–",
            str(actor.version) if actor.version >= 0 else "",
            str(actor.held) if actor.held else "",
            Text(str(actor.restarts), style="yellow") if actor.restarts else "",
            Text(_doing(actor, wide), style="dim"),
        )
    return table


def _doing(actor: ActorState, wide: bool) -> str:
    known = [
        ("running", "running"),
        ("busy", "judging"),
        ("waiting", "waiting"),
        ("waiting_episodes", "episodes waiting"),
        ("open_groups", "groups open"),
    ]
    if wide:
        known += [("rss_mb", "MB"), ("loop_lag_ms", "ms lag")]
    return "  ".join(f"{actor.gauges[gauge]:.0f} {word}" for gauge, word in known if gauge in actor.gauges)


def _errors(state: LiveState) -> RenderableType:
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(style="dim", no_wrap=True, width=8)
    table.add_column(style="red", no_wrap=True, width=min(16, max(len(actor) for _, actor, _ in state.errors)))
    table.add_column(overflow="ellipsis", no_wrap=True, ratio=1)
    for at, actor, text in state.errors:
        style = "green" if (at, actor, text) in state.mended else ""
        clock = time.strftime("%H:%M:%S", time.localtime(at))
        table.add_row(clock, Text(clean(actor), style), Text(clean(text), style))
    return table


def _rows() -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True, min_width=9)
    table.add_column(overflow="fold")
    return table


def plain_line(state: LiveState, now: float) -> str:
    """The last step as one line of a log."""
    latest = state.latest
    parts = [f"step {state.done}/{state.steps_total or '?'}"]
    if (reward := latest.get("reward/mean")) is not None:
        parts.append(f"reward {reward:.3f} (mean {state.moving_mean('reward/mean'):.3f})")
    if by_turn := turns_text(latest):
        parts.append(by_turn)
    if (turns := latest.get("turns/mean")) is not None:
        parts.append(f"turns {turns:.2f}")
    if (lag := latest.get("staleness/mean")) is not None:
        parts.append(f"staleness {lag:.2f} (max {latest.get('staleness/max', lag):.0f})")
    parts += rates_words(state, now)
    if limit := stages.short(latest):
        parts.append(limit)
    if (left := state.left_s(now)) is not None and not state.finished:
        parts.append(f"{duration(left)} left")
    return "  ".join(parts)


def rates_words(state: LiveState, now: float) -> list[str]:
    return [f"{number(rate)} {unit}" for rate, unit in state.rates(now)]


def quiet_line(state: LiveState, now: float) -> str:
    """What is under way, for who has heard nothing for a while."""
    if state.note.startswith(("stopping", "finished")):
        return clean(f"still {state.note}")
    parts = [f"step {state.done}/{state.steps_total or '?'}, {'next' if state.steps else 'first'} one under way"]
    if (left := state.left_s(now)) is not None and not state.finished:
        parts.append(f"{duration(left)} left")
    if queues := ", ".join(f"{name} {count}" for name, count in state.waiting().items()):
        parts.append(f"waiting: {queues}")
    parts += rates_words(state, now)
    if missing := [name for name, one in state.actors.items() if one.health(now, state.dead_after_s) != "ok"]:
        parts.append(f"not at work: {', '.join(sorted(missing))}")
    return clean("  ".join(parts))


def heldout_line(state: LiveState) -> str:
    """The newest evaluation beside training; `version 20  reward 0.412 (version 5: 0.355)  correct by turn 1: 31 %`."""
    version, figures = state.heldout[-1]
    parts = [f"version {version}"]
    reward, first = figures.get("reward/mean"), state.heldout[0][1].get("reward/mean")
    if reward is not None:
        since = f" (version {state.heldout[0][0]}: {first:.3f})" if first is not None and len(state.heldout) > 1 else ""
        parts.append(f"reward {reward:.3f}{since}")
    if by_turn := turns_text(figures):
        parts.append(by_turn)
    return "  ".join(parts) if len(parts) > 1 else f"version {version}  nothing scored"


def turns_text(metrics: Mapping[str, float]) -> str:
    """`correct by turn 1: 34 %, 2: 59 %`; empty where nothing is known."""
    known = ", ".join(f"{turn}: {percent(share)}" for turn, share in turn_series(metrics))
    return f"correct by turn {known}" if known else ""


def turn_series(metrics: Mapping[str, float]) -> list[tuple[int, float]]:
    """(turn, share of episodes that are correct by then), in order."""
    prefix = "correct/by_turn_"
    found = [(int(name.removeprefix(prefix)), share) for name, share in metrics.items() if name.startswith(prefix)]
    return sorted((number, share) for number, share in found if share is not None)


def sparkline(values: Iterable[float], width: int) -> str:
    """The values as bars between their least and greatest; more values than `width` are averaged into it."""
    series = list(values)
    if len(series) > width:
        bounds = [round(i * len(series) / width) for i in range(width + 1)]
        series = [sum(series[a:b]) / (b - a) for a, b in pairwise(bounds)]
    low, high = min(series), max(series)
    span = high - low or 1.0
    return "".join(BARS[round((value - low) / span * (len(BARS) - 1))] for value in series)


def number(value: float) -> str:
    """Three figures are enough to watch: `0.42`, `6.1`, `310`, `3.1k`, `2.4M`."""
    for scale, letter in ((1e6, "M"), (1e3, "k")):
        if value >= scale:
            return f"{value / scale:.1f}{letter}"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def clean(text: str) -> str:
    """Text from elsewhere on one line, without the control characters that would drive the terminal. Hand it to rich
    inside a `Text`: a bare string is read as markup."""
    return "".join(c if c.isprintable() else " " for c in text)


class View:
    """Shows a state on a console. Call `feed` for every event and `refresh` a few times a second; use as a context."""

    def __init__(self, console: Console | None = None, state: LiveState | None = None) -> None:
        self.console = console or Console()
        self.state = state or LiveState()
        self._live = Live(console=self.console, auto_refresh=False) if self.console.is_terminal else None
        self._note = ""
        self._now = self._said_at = 0.0

    def __enter__(self) -> "View":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def feed(self, event: Mapping[str, Any], now: float) -> None:
        """Take an event in; without a terminal, print the line that it is worth, once in the life of a run."""
        state, errors, done = self.state, list(self.state.errors), self.state.done
        self._now = now
        state.feed(event)
        if self._live is not None:
            return
        kind = event.get("type")
        if kind in ("step", "fact") and state.before(event):
            return
        if kind == "step" and event.get("kind") == "step":
            self._say(plain_line(state, min(now, event.get("at") or now)))  # a record's past as it was then
        elif kind == "fact" and event.get("kind") == "evaluated":
            self._say(f"held-out  {heldout_line(state)}")
        elif kind == "step" and event.get("kind") == "incarnation" and state.base_step:
            again = done - state.base_step
            lost = f"; {'1 step is' if again == 1 else f'{again} steps are'} made again" if again > 0 else ""
            self._say(f"the learner goes on from step {state.base_step}{lost}")
        elif kind == "note" and state.note and state.note != self._note:
            self._say(clean(state.note))
        elif list(state.errors) != errors:
            _, actor, text = state.errors[-1]
            self._say(f"{'mended ' if event.get('mended') else 'trouble'}  {clean(actor)}  {clean(text)}")
        self._note = state.note

    def refresh(self, now: float) -> None:
        if self._live is not None:
            self._live.update(render(self.state, now), refresh=True)
            return
        self._now, self._said_at = now, self._said_at or now
        if now - self._said_at >= EVERY_S:
            self._say(quiet_line(self.state, now))

    def _say(self, line: str) -> None:
        self._said_at = self._now
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)
