"""structlog for one process: JSON lines on stdout, with run, actor and whatever is bound in the context.

The supervisor writes each actor's lines into the run folder; a container's log driver takes them as they are.
"""

import contextlib
import logging
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import structlog

WORDS = {
    "bus.disconnected": "lost the connection to the broker at {url}; trying until it is back",
    "bus.trying": "the broker at {url} does not answer yet ({error}); trying until {until}",
    "bus.reconnected": "the broker at {url} is back after {away_s} s",
    "bus.closed": "the broker at {url} closed the connection for good: {error}",
    "bus.error": "trouble on the connection to the broker: {error}",
    "bus.narrow": "the broker at {url} {why}; {mend}",
    "bus.unclean_close": "left the broker without a goodbye: {error}",
}
"""What the bus logs by a name, for people."""
MENDED = {"bus.reconnected"}
"""Those that tell the end of a trouble."""


def configure(**context: object) -> None:
    """JSON lines on stdout from here on; `context` is in every line."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _said,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stdout),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(**context)


def on_terminal() -> None:
    """One line an event on stderr, for a command whose stdout is for its results. A trace has no variables' values:
    tokens may be among them."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%Y-%m-%d %H:%M:%S", utc=False),
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
            ),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


def _said(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A line that has a name has its sentence beside it, for who reads the log itself."""
    if event.get("event") in WORDS:
        event["said"] = words(event)
    return event


def words(event: Mapping[str, Any]) -> str:
    """A log's line as one sentence for people."""
    known = WORDS.get(str(event.get("event")))
    if known is not None:
        return known.format_map(defaultdict(str, event))
    more = " ".join(str(event[key]) for key in ("why", "detail") if event.get(key))
    return f"{event.get('event', '')}: {more}" if more else str(event.get("event", ""))


@contextlib.contextmanager
def told_to(take: Callable[[dict[str, Any]], None]) -> Iterator[None]:
    """While this lasts, what this process logs from warnings on is handed to `take`; nothing of it is printed."""
    before = structlog.get_config() if structlog.is_configured() else None

    def hand(_logger: Any, _method: str, event: Any) -> Any:
        take(dict(event))
        raise structlog.DropEvent

    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, structlog.processors.add_log_level, hand],
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        cache_logger_on_first_use=False,
    )
    try:
        yield
    finally:
        structlog.reset_defaults()
        if before is not None:
            structlog.configure(**before)
