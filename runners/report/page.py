"""The report's page: from `ReportData` to one HTML text. No script, no link, no network; a policy forbids them as well.

Everything that is not a literal of this file goes through `escape` (or `svg`, `code`, which escape): task ids, feedback
and kernels were written by a model, or by a candidate that knows it will be read.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from core.episodes.heldout_figures import HeldOut, HeldOutEpisode
from core.record.redact import redacted
from runners.live import duration, turn_series
from runners.report import stages
from runners.report.code import code_block, visible
from runners.report.data import Pair, ReportData, first_and_last, mean_of, moving_mean, shown_turn, standard_error
from runners.report.style import CSS
from runners.report.svg import Series, figure, line_chart

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
LEARNER = (
    ("loss", "Loss"),
    ("entropy", "Entropy, nats"),
    ("kl", "KL to the starting policy, nats"),
    ("grad_norm", "Gradient norm before clipping"),
    ("drift_abs_max", "Largest disagreement of learner and engine, in log-probs"),
    ("clip_share", "Share of tokens that the clip holds"),
    ("lr", "Learning rate"),
    ("tokens_per_s", "Tokens per second in the learner"),
)
MOST_MARKS = 20
"""Of each kind."""


def page(data: ReportData) -> str:
    """The whole document."""
    sections = [
        _head(data),
        _tiles(data),
        _held_out(data),
        _charts(data),
        _ledger(data),
        _kernels(data),
        _config(data),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(data.name)} · KernelMill</title><style>{CSS}</style></head><body><main>"
        + "\n".join(section for section in sections if section)
        + "</main></body></html>\n"
    )


def _head(data: ReportData) -> str:
    parts = [data.standing]
    if data.ledger.finished:
        parts.append(f"{data.ledger.step} steps")
    if data.started_at is not None and data.ended_at is not None:
        parts.insert(0, time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(data.started_at)))
        paused = f", stopped for {duration(data.paused_s)} between" if data.paused_s else ""
        parts.append(duration(data.ended_at - data.started_at - data.paused_s) + paused)
    model = data.config.get("model", {}).get("path")
    if model:
        parts.append(str(model))
    cut = "".join(f'<p class="bad small">Not whole: {escape(line)}</p>' for line in data.left_out)
    return f'<h1>{escape(data.name)}</h1><p class="soft">{escape(" · ".join(parts))}</p>{cut}'


def _tiles(data: ReportData) -> str:
    tiles = []
    first, last, n = first_and_last(data.series("reward/mean"))
    if first is not None and last is not None:
        steps = "step" if n == 1 else f"{n} steps"
        tiles.append((f"{first:.2f} → {last:.2f}", f"reward, mean of the first and last {steps}"))
    if data.before and data.after:
        for name, what in (
            ("correct/by_turn_1", "held-out correct at turn 1"),
            ("repair/turn_2", "held-out repaired at turn 2"),
        ):
            before, after = data.before.figures.get(name), data.after.figures.get(name)
            if before is not None and after is not None:
                tiles.append((f"{100 * before:.0f} → {100 * after:.0f} %", what))
    tiles.append((f"{data.ledger.episodes.trained:,}".replace(",", " "), "episodes trained"))
    lags = [lag for lag in data.series("staleness/max") if lag is not None]
    if lags:
        tiles.append((f"{max(lags):.0f}", "versions, greatest staleness"))
    cells = "".join(
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(what)}</span></div>' for value, what in tiles
    )
    word, style = ("balanced", "good") if data.ledger.balanced else ("NOT balanced", "bad")
    cells += f'<div class="tile"><b class="{style}">{word}</b><span>ledger</span></div>'
    return f'<div class="tiles">{cells}</div>'


def _held_out(data: ReportData) -> str:
    before, after = data.before, data.after
    if before is None and after is None:
        return ""
    turns = sorted({n for side in (before, after) if side for n, _ in turn_series(side.figures)})
    rows = [(f"correct/by_turn_{n}", "correct at turn 1" if n == 1 else f"correct by turn {n}") for n in turns]
    rows += [
        ("repair/turn_2", "repaired: turn 2 correct after a wrong turn 1"),
        ("compiled/turn_1", "compiled at turn 1"),
        ("reward/mean", "reward"),
        ("speedup/geomean", "speedup of correct kernels, geometric mean"),
        ("turns/mean", "turns"),
    ]
    body: list[list[str | tuple[str, str]]] = []
    for name, what in rows:
        b, a = (side.figures.get(name) if side else None for side in (before, after))
        if b is None and a is None:
            continue
        share = name.startswith(("correct", "compiled", "repair"))
        cells = [_with_error(value, side, name, share) for value, side in ((b, before), (a, after))]
        change = "" if a is None or b is None else f"{100 * (a - b):+.1f} pts" if share else f"{a - b:+.3g}"
        body.append([what, *cells, change])
    sides = [
        f"{when}: policy version {side.version}" if side else f"{when}: not made"
        for when, side in (("before", before), ("after", after))
    ]
    some = after or before
    assert some is not None
    note = (
        f"{some.tasks} tasks that are not trained on, {len(some.episodes)} episodes, the same tasks and sampling on "
        f"both sides; {', '.join(sides)}. ± is the standard error of a share."
    )
    table = _table(["", "before", "after", "change"], body, numbers=(1, 2, 3))
    return f'<h2>Held-out tasks</h2><p class="soft small">{escape(note)}</p>{table}'


def _with_error(value: float | None, side: HeldOut | None, name: str, share: bool) -> tuple[str, str]:
    if value is None or side is None:
        return "–", ""
    if not share:
        return figure(value), ""
    played = [episode for episode in side.episodes if any(turn.score is not None for turn in episode.turns)]
    if name == "repair/turn_2":
        played = [episode for episode in played if len(episode.turns) > 1 and not _right(episode, 0)]
    error = standard_error(value, len(played))
    # At 0 and 1 the formula has nothing to say.
    return f"{100 * value:.1f} %", f"± {100 * error:.1f}" if error else ""


def _right(episode: HeldOutEpisode, turn: int) -> bool:
    verdict = episode.turns[turn].verdict
    return verdict is not None and verdict.kind == "pass" and verdict.correct


def _charts(data: ReportData) -> str:
    if not data.steps:
        return '<h2>Training</h2><p class="absent">No step was recorded.</p>'
    xs = [float(step) for step in data.steps]
    width = max(3, min(20, len(xs) // 6))
    still = [step for step, figures in zip(data.steps, data.figures, strict=True) if figures.get("applied") == 0]
    refused = [(step, "the weights did not move: the update was refused") for step in still[:MOST_MARKS]]
    marks = sorted([*data.rollbacks[:MOST_MARKS], *data.settings[:MOST_MARKS], *refused])

    def raw_and_mean(name: str, what: str) -> list[Series]:
        values = data.series(name)
        return [
            Series(what, xs, values, 0, faint=True),
            Series(f"mean of {width} steps", xs, moving_mean(values, width), 0),
        ]

    turns = sorted({n for figures in data.figures for n, _ in turn_series(figures)})  # type: ignore[arg-type]
    by_turn = [
        Series(
            f"turn {n}" if n == 1 else f"by turn {n}", xs, moving_mean(data.series(f"correct/by_turn_{n}"), width), i
        )
        for i, n in enumerate(turns[:6])
    ]
    bound = data.config.get("sampler", {}).get("max_staleness")
    limit = (float(bound), f"max_staleness {bound}") if bound is not None else None

    def timed(*named: tuple[str, str]) -> list[Series]:
        """Those that were measured: records of older runs lack some."""
        return [
            Series(what, xs, moving_mean(data.series(name), width), i)
            for i, (name, what) in enumerate(named)
            if mean_of(data.series(name)) is not None
        ]

    played = timed(("time/generation_s", "generation"), ("time/judging_s", "judging"))
    training = timed(
        ("time/learner_s", "learner"),
        ("time/wait_s", "waiting for episodes"),
        ("time/prepare_exposed_s", "preparing"),
        ("time/publish_exposed_s", "publishing"),
        ("time/checkpoint_exposed_s", "checkpoint"),
    )
    charts = [
        _figure(
            "Reward per step",
            "best turn's score, mean over episodes",
            line_chart(raw_and_mean("reward/mean", "step"), title="Reward per step", floor=0.0, marks=marks),
        ),
        _figure(
            "Correct by turn",
            f"share of episodes with a correct kernel by then, mean of {width} steps",
            line_chart(by_turn, title="Correct by turn", percent=True, floor=0.0, top=1.0, marks=marks),
        ),
        _figure(
            "Repair at turn 2",
            "share of wrong first turns that the second turn put right",
            line_chart(
                raw_and_mean("repair/turn_2", "step"), title="Repair at turn 2", percent=True, floor=0.0, top=1.0,
                marks=marks,
            ),
        ),
        _figure(
            "Staleness",
            "policy versions between sampling and training",
            line_chart(
                [
                    Series("max", xs, data.series("staleness/max"), 1),
                    Series("mean", xs, data.series("staleness/mean"), 0),
                ],
                title="Staleness", floor=0.0, top=limit[0] * 1.2 if limit else None, marks=marks, limit=limit,
            ),
        ),
        _figure(
            "An episode's time",
            f"seconds per episode, mean of {width} steps",
            line_chart(played, title="An episode's time", unit="s", floor=0.0, marks=marks),
        ),
        _figure(
            "A step's time",
            f"seconds of a step that each part takes; what is hidden behind a step is left out; mean of {width} steps",
            line_chart(training, title="A step's time", unit="s", floor=0.0, marks=marks),
        ),
        _figure(
            "Turns per episode",
            "fewer turns: solved earlier",
            line_chart(raw_and_mean("turns/mean", "step"), title="Turns per episode", floor=1.0, marks=marks),
        ),
    ]  # fmt: skip
    if mean_of(data.series("speedup/geomean")) is not None:
        kind = str(data.config.get("judge", {}).get("speed", "")) or "as judged"
        charts.append(
            _figure(
                "Speedup of correct kernels",
                f"over the baseline, geometric mean, {kind}",
                line_chart(raw_and_mean("speedup/geomean", "step"), title="Speedup", marks=marks, floor=1.0),
            )
        )
    what, busy = stages.chart(xs, data.series, lambda values: moving_mean(values, width), marks)
    if busy:
        charts.append(_figure("How busy the stages are", what, busy))
    if data.beside:
        charts.append(_beside(data))
    for gauge, what in (("tokens_total", "tokens/s"), ("verdicts_total", "verdicts/s")):
        if gauge in data.throughput:
            minutes, rates = data.throughput[gauge]
            chart = line_chart([Series(what, minutes, rates, 0)], title=what, x_label="minute", floor=0.0)
            charts.append(
                _figure(what.capitalize(), "all actors together; minutes in which nothing ran are left out", chart)
            )
    learner = [
        _figure(what, "", line_chart(raw_and_mean(name, "step"), title=what, marks=marks))
        for name, what in LEARNER
        if mean_of(data.series(name)) is not None
    ]
    noted = "".join(f"<li>step {step}: {escape(what)}</li>" for step, what in marks)
    notes = f'<p class="soft small">Dotted vertical lines:</p><ul class="small">{noted}</ul>' if noted else ""
    more = f'<details><summary>the learner itself: {len(learner)} plots</summary><div class="charts">{"".join(learner)}'
    more += "</div></details>"
    return f'<h2>Training</h2><div class="charts">{"".join(charts)}</div>{notes}{more if learner else ""}'


def _beside(data: ReportData) -> str:
    """The evaluations while the run trained."""
    xs = [float(version) for version, _ in data.beside]
    turns = sorted({n for _, figures in data.beside for n, _ in turn_series(_held(figures))})
    names = [("reward/mean", "reward")]
    names += [(f"correct/by_turn_{n}", "correct at turn 1" if n == 1 else f"correct by turn {n}") for n in turns[:5]]
    lines = [
        Series(what, xs, [figures.get(f"heldout/{name}") for _, figures in data.beside], i)
        for i, (name, what) in enumerate(names)
    ]
    missing = sum(int(figures["heldout/missing"]) for _, figures in data.beside)
    told = f"{len(data.beside)} policy versions; {missing} tasks were not answered"
    chart = line_chart(lines, title="Held-out tasks while training", x_label="version", floor=0.0)
    return _figure("Held-out tasks while training", told, chart)


def _held(figures: Mapping[str, float]) -> dict[str, float]:
    return {name.removeprefix("heldout/"): value for name, value in figures.items()}


def _figure(title: str, what: str, chart: str) -> str:
    return f'<figure class="card"><figcaption><b>{escape(title)}</b>{escape(what)}</figcaption>{chart}</figure>'


def _ledger(data: ReportData) -> str:
    ledger = data.ledger
    rows = []
    for what, account in (("groups", ledger.groups), ("episodes", ledger.episodes)):
        reasons = account.reasons()
        rejected = f"{account.rejected_total}" + (f" ({reasons})" if reasons else "")
        rows.append([what, str(account.submitted), str(account.trained), rejected, str(account.pending)])
    word, style = ("balanced", "good") if ledger.balanced else ("not balanced", "bad")
    rolled = f", {ledger.voided_steps} of them taken back by rollbacks" if ledger.voided_steps else ""
    made = ledger.step + ledger.voided_steps
    times = {1: "once", 2: "twice"}.get(ledger.incarnations, f"{ledger.incarnations} times")
    told = f"{made} steps made{rolled}; the learner was started {times}."
    problems = "".join(f"<li>{escape(problem)}</li>" for problem in ledger.problems[:50])
    facts = ", ".join(f"{count} {kind}" for kind, count in data.facts.items())
    return (
        f'<h2>Ledger <span class="badge {style}">{word}</span></h2>'
        '<p class="soft small">submitted = trained + rejected + pending, from the event record alone. '
        f"{escape(told)}</p>"
        + _table(["", "submitted", "trained", "rejected", "pending"], rows, numbers=(1, 2, 4))
        + (f'<ul class="bad small">{problems}</ul>' if problems else "")
        + (f'<p class="soft small">Facts recorded: {escape(facts)}.</p>' if facts else "")
    )


def _kernels(data: ReportData) -> str:
    if not data.pairs:
        return ""
    cards = "".join(_pair(pair) for pair in data.pairs)
    return f'<h2>Kernels before and after</h2><p class="soft small">{escape(data.pairs_from)}</p>{cards}'


def _pair(pair: Pair) -> str:
    source = (
        f"<details><summary>the task in PyTorch</summary>{code_block(pair.source)}</details>" if pair.source else ""
    )
    sides = _side("before", pair.before) + _side("after", pair.after)
    return (
        f'<div class="card pair"><h3>{escape(visible(pair.task_id))}</h3>{source}<div class="sides">{sides}</div></div>'
    )


def _side(when: str, episode: HeldOutEpisode) -> str:
    turn = shown_turn(episode)
    number = episode.turns.index(turn) + 1
    verdict = turn.verdict
    if verdict is None:
        badge, told = '<span class="badge">no verdict</span>', ""
    else:
        passed = verdict.kind == "pass"
        word = "correct" if passed and verdict.correct else "pass" if passed else verdict.category or verdict.kind
        style = "good" if passed else "bad" if verdict.kind == "fail" else ""
        badge = f'<span class="badge {style}">{escape(visible(word.replace("_", " ")))}</span>'
        told = f'<div class="feedback">{escape(visible(verdict.feedback))}</div>' if verdict.feedback else ""
        if verdict.speedup is not None:
            badge += f' <span class="badge">{verdict.speedup:.2f}× {escape(verdict.speed_kind)}</span>'
    score = "" if turn.score is None else f" · score {turn.score:.2f}"
    place = f"turn {number} of {len(episode.turns)}{score}"
    shown = code_block(turn.candidate) if turn.candidate else '<p class="absent">no kernel was found in the answer</p>'
    head = f'<p><b>{when}</b> {badge} <span class="soft small">{escape(place)}</span></p>'
    return f'<div class="side">{head}{told}{shown}</div>'


def _config(data: ReportData) -> str:
    rows = [[key, visible(str(value))] for key, value in _flat(redacted(data.config))]
    if not rows:
        return ""
    body = "".join(
        f'<tr><td class="key">{escape(key)}</td><td class="value">{escape(value)}</td></tr>' for key, value in rows
    )
    return (
        "<h2>Configuration</h2><details><summary>"
        f'{len(rows)} values, as resolved</summary><div class="scroll"><table>{body}</table></div></details>'
    )


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
            for n, item in enumerate(value):
                yield from _flat(item, f"{prefix}{key}[{n}].")
        else:
            yield f"{prefix}{key}", value


def _table(head: Sequence[str], rows: Sequence[Sequence[str | tuple[str, str]]], numbers: Sequence[int]) -> str:
    """`numbers`: columns that are aligned right. A cell may be (text, smaller text)."""
    style = ['class="n"' if n in numbers else "" for n in range(len(head))]
    top = "".join(f"<th {style[n]}>{escape(text)}</th>" for n, text in enumerate(head))
    body = "".join(
        "<tr>" + "".join(f"<td {style[n]}>{_cell(text)}</td>" for n, text in enumerate(row)) + "</tr>" for row in rows
    )
    return f'<div class="card scroll"><table><tr>{top}</tr>{body}</table></div>'


def _cell(content: str | tuple[str, str]) -> str:
    if isinstance(content, str):
        return escape(content)
    text, smaller = content
    return escape(text) + (f" <small>{escape(smaller)}</small>" if smaller else "")
