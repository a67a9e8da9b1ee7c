"""structlog for one process: JSON lines on stdout, with run, actor and whatever is bound in the context.

The supervisor writes each actor's lines into the run folder; a container's log driver takes them as they are.
"""

import logging
import sys

import structlog


def configure(**context: object) -> None:
    """JSON lines on stdout from here on; `context` is in every line."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stdout),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(**context)
