"""The service's own log: one JSON object a line on standard error, for our events and for the libraries'."""

import json
import logging
import sys
import threading
from contextlib import suppress
from typing import Any, BinaryIO

import structlog

LEVELS = {"DEBUG": logging.DEBUG, "INFO": logging.INFO, "WARNING": logging.WARNING, "ERROR": logging.ERROR}


def configure(level: str, libraries: str = "") -> None:
    """Send everything that is logged in this process to standard error as JSON lines.

    Our events are written without passing through `logging`, which takes twice the time; what libraries log there comes
    out in the same form, from the level `libraries` on where they have one of their own.
    """
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
        structlog.processors.format_exc_info,
    ]
    encode = json.JSONEncoder(default=str).encode  # one for all lines: `json.dumps` makes one each time
    as_json = structlog.processors.JSONRenderer(lambda event, **_: encode(event))
    lines = _Lines(sys.stderr.buffer)
    structlog.configure(
        processors=[*shared, as_json],
        logger_factory=lines.logger,
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, as_json],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    _set_level(root, LEVELS[libraries or level])
    if root.level < logging.WARNING:
        for chatty in ("kombu", "celery", "amqp", "asyncio"):
            _set_level(logging.getLogger(chatty), logging.WARNING)


def _set_level(logger: logging.Logger, level: int) -> None:
    """Where it is another: `setLevel` has all loggers forget what they know, one by one."""
    if logger.level != level:
        logger.setLevel(level)


class _Lines:
    """A file that threads write whole lines to. A full disk loses lines, and fails nothing."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._lock = threading.Lock()

    def write(self, line: str) -> None:
        with self._lock, suppress(OSError, ValueError):  # ValueError: it was closed
            self._file.write(line.encode() + b"\n")
            self._file.flush()

    def logger(self, name: str = "") -> "_Logger":
        return _Logger(name, self)


class _Logger:
    """What structlog hands finished lines to. One name for each level, which it calls the same way."""

    def __init__(self, name: str, lines: _Lines) -> None:
        self.name = name
        self.debug = self.info = self.warning = self.error = self.critical = lines.write
