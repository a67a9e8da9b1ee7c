"""Line charts as inline SVG: axes, ticks, legend, marks, and a tooltip for every x, without a script.

Colours are CSS variables (`--c0` .. `--c5`, `--ink`, `--faint`, `--grid`), so one drawing serves light and dark pages.
Every text that comes in is escaped here.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

WIDTH, HEIGHT = 480, 230
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 10, 36
MAX_POINTS = 240
"""More points than this are averaged into as many."""
DASHES = ("", "", "", "6 3", "2 3", "8 3 2 3")


@dataclass(frozen=True)
class Series:
    """One line; y is None where there is no value (the line is broken there)."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float | None]
    colour: int = 0
    faint: bool = False
    """Drawn thin behind the others: raw values behind their mean."""


def line_chart(
    series: Sequence[Series],
    *,
    title: str,
    x_label: str = "step",
    percent: bool = False,
    unit: str = "",
    floor: float | None = None,
    top: float | None = None,
    marks: Sequence[tuple[float, str]] = (),
    limit: tuple[float, str] | None = None,
) -> str:
    """A legend and an SVG element. `percent` shows shares (0..1) as percent; `floor` and `top` are values that the y
    axis must reach; `marks` are vertical lines (x, what happened there); `limit` is a horizontal line (y, its name)."""
    lines = [_thinned(s) for s in series if any(y is not None for y in s.ys)]
    if not lines:
        return f'<p class="absent">{escape(title)}: nothing was recorded.</p>'
    xs = [x for s in lines for x in s.xs]
    ys = [y for s in lines for y in s.ys if y is not None]
    ys += [y for y in (floor, top, limit[0] if limit else None) if y is not None]
    y_ticks = ticks(min(ys), max(ys), 5)
    x_low, x_high = min(xs), max(xs)
    x_span = (x_high - x_low) or 1.0
    y_low, y_high = y_ticks[0], y_ticks[-1]

    def px(x: float) -> float:
        return LEFT + (x - x_low) / x_span * (WIDTH - LEFT - RIGHT)

    def py(y: float) -> float:
        return HEIGHT - BOTTOM - (y - y_low) / (y_high - y_low) * (HEIGHT - TOP - BOTTOM)

    parts = [f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">']
    for tick in y_ticks:
        y = py(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(LEFT - 6, y + 4, label(tick, y_ticks, percent), "end"))
    x_ticks = [tick for tick in ticks(x_low, x_high, 6) if x_low <= tick <= x_high]
    for tick in x_ticks:
        parts.append(_text(px(tick), HEIGHT - BOTTOM + 16, label(tick, x_ticks, False), "middle"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 4, x_label, "middle"))
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{HEIGHT - BOTTOM}" y2="{HEIGHT - BOTTOM}"/>')
    for x, what in marks:
        if x_low <= x <= x_high:
            parts.append(
                f'<line class="mark" x1="{px(x):.1f}" x2="{px(x):.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}">'
                f"<title>{escape(what)}</title></line>"
            )
    if limit:
        parts.append(
            f'<line class="limit" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{py(limit[0]):.1f}" y2="{py(limit[0]):.1f}"/>'
        )
        parts.append(_text(WIDTH - RIGHT, py(limit[0]) - 5, limit[1], "end"))
    for s in sorted(lines, key=lambda s: not s.faint):
        parts.append(_line(s, px, py))
    parts += _tooltips(lines, px, x_label, percent, unit)
    parts.append("</svg>")
    return _legend(lines) + "".join(parts)


def _line(s: Series, px, py) -> str:
    """The polyline, broken at gaps; a value that stands alone is a dot."""
    runs: list[list[tuple[float, float]]] = [[]]
    for x, y in zip(s.xs, s.ys, strict=True):
        if y is None:
            runs.append([])
        else:
            runs[-1].append((px(x), py(y)))
    style = f"stroke:var(--c{s.colour})"
    if dash := DASHES[s.colour % len(DASHES)]:
        style += f";stroke-dasharray:{dash}"
    out = []
    for points in runs:
        if len(points) == 1:
            out.append(f'<circle cx="{points[0][0]:.1f}" cy="{points[0][1]:.1f}" r="2.5" fill="var(--c{s.colour})"/>')
        elif points:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            out.append(f'<polyline class="line{" faint" if s.faint else ""}" style="{style}" points="{path}"/>')
    return "".join(out)


def _legend(lines: Sequence[Series]) -> str:
    """In HTML, so that it wraps on a narrow page."""
    keys = []
    for s in lines:
        dash = {"": "solid", "6 3": "dashed"}.get(DASHES[s.colour % len(DASHES)], "dotted")
        swatch = f"border-top:{1 if s.faint else 2}px {dash} var(--c{s.colour})"
        faint = ' class="faint"' if s.faint else ""
        keys.append(f'<span><i{faint} style="{swatch}"></i>{escape(s.name)}</span>')
    return f'<div class="legend">{"".join(keys)}</div>'


def _tooltips(lines: Sequence[Series], px, x_label: str, percent: bool, unit: str) -> list[str]:
    """A transparent column over every x, whose title lists the values there."""
    values: dict[float, list[str]] = {}
    for s in lines:
        for x, y in zip(s.xs, s.ys, strict=True):
            if y is not None:
                values.setdefault(x, []).append(f"{s.name}: {figure(y, percent)}{f' {unit}' if unit else ''}")
    xs = sorted(values)
    edges = [LEFT, *((px(a) + px(b)) / 2 for a, b in pairwise(xs)), WIDTH - RIGHT]
    return [
        f'<rect class="hover" x="{edges[n]:.1f}" y="{TOP}" width="{max(0.5, edges[n + 1] - edges[n]):.1f}" '
        f'height="{HEIGHT - TOP - BOTTOM}"><title>{escape(f"{x_label} {x:g}")}&#10;'
        f"{'&#10;'.join(map(escape, values[x]))}</title></rect>"
        for n, x in enumerate(xs)
    ]


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _thinned(s: Series) -> Series:
    if len(s.xs) <= MAX_POINTS:
        return s
    xs: list[float] = []
    ys: list[float | None] = []
    for n in range(MAX_POINTS):
        a, b = n * len(s.xs) // MAX_POINTS, (n + 1) * len(s.xs) // MAX_POINTS
        known = [y for y in s.ys[a:b] if y is not None]
        xs.append(s.xs[(a + b) // 2])
        ys.append(sum(known) / len(known) if known else None)
    return Series(s.name, xs, ys, s.colour, s.faint)


def ticks(low: float, high: float, about: int) -> list[float]:
    """Round numbers from at or below `low` to at or above `high`, about so many; at least two."""
    if high - low < 1e-9 * max(1.0, abs(high)):
        low, high = (low - 0.5, high + 0.5) if low else (0.0, 1.0)
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [n * step for n in range(first, last + 1)]


def label(value: float, all_ticks: Sequence[float], percent: bool) -> str:
    """A tick's text, with as many decimals as its neighbours need."""
    if percent:
        return f"{100 * value:.0f} %"
    if value and abs(value) >= 10_000:
        return f"{value / 1000:g}k"
    step = abs(all_ticks[1] - all_ticks[0]) if len(all_ticks) > 1 else 1.0
    decimals = next((d for d in range(6) if abs(round(step, d) - step) < 1e-6 * step), None)
    if decimals is None:
        return f"{value:.3g}"
    return f"{value:.{decimals}f}" if value else "0"


def figure(value: float, percent: bool = False) -> str:
    """A value to read: three significant figures."""
    if percent:
        return f"{100 * value:.1f} %"
    return f"{value:.0f}" if abs(value) >= 100 or value == 0 else f"{value:#.3g}"
