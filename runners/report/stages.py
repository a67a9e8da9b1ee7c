"""The report's plot of how busy the stages were, and the words on which of them limited the run."""

from collections import Counter
from collections.abc import Callable, Sequence

from core.flow.stages import LIMITS, STAGES
from runners.report.svg import Series, line_chart

Values = Sequence[float | None]


def chart(
    xs: list[float], series: Callable[[str], list[float | None]], mean: Callable[[Values], list[float | None]],
    marks: list[tuple[int, str]],
) -> tuple[str, str]:  # fmt: skip
    """(what it shows, the plot); empty for the records of older runs. `mean` smooths a series."""
    known = [(i, stage, series(f"stage/{stage}_busy")) for i, stage in enumerate(STAGES)]
    lines = [Series(stage, xs, mean(values), i) for i, stage, values in known if set(values) - {None}]
    if not lines:
        return "", ""
    what = f"share of the time, mean over half a minute at least; {limits(series('stage/limit'))}"
    return what, line_chart(lines, title="How busy the stages are", percent=True, floor=0.0, top=1.0, marks=marks)


def limits(codes: Values) -> str:
    """`limits: judging in 12 steps, balanced in 3`."""
    counted = Counter(LIMITS[int(code)] for code in codes if code is not None and 0 <= int(code) < len(LIMITS))
    steps = ["1 step" if count == 1 else f"{count} steps" for _, count in counted.most_common()]
    told = ", ".join(f"{name} in {count}" for (name, _), count in zip(counted.most_common(), steps, strict=True))
    return f"limits: {told}" if told else "too short to tell a limit"
