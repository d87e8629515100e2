"""Configures the service's own log: one JSON object a line on standard error, for our events and for the libraries'."""

import json
import logging
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, BinaryIO

import msgspec
import structlog

from jobs.support.log_follower import LogFollower, follow_log

#: The id of the request that is served now, which every line that is logged meanwhile has.
current_request: ContextVar[str] = ContextVar("current_request", default="")

LEVELS = {"DEBUG": logging.DEBUG, "INFO": logging.INFO, "WARNING": logging.WARNING, "ERROR": logging.ERROR}


def configure_logging(level: str, libraries: str = "") -> None:
    """Send everything that is logged in this process to standard error as JSON lines.

    Our events are written without passing through `logging`, which takes twice the time; what libraries log there comes
    out in the same form, from the level `libraries` on where they have one of their own.
    """
    lines = _LineFile(sys.stderr.buffer, follow_log())
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, _complete_event, _encode_event],
        logger_factory=lines.logger,
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        cache_logger_on_first_use=True,
    )
    handler = _LineHandler(lines)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[_complete_event],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                lambda *parts: _encode_event(*parts).decode(),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    _set_level(root, LEVELS[libraries or level])
    if root.level < logging.WARNING:
        for chatty in ("kombu", "celery", "amqp", "asyncio", "httpx", "httpcore"):
            _set_level(logging.getLogger(chatty), logging.WARNING)


def clean_log_lines(clean: Callable[[bytes], bytes]) -> None:
    """Have every line that this process logs from now on pass through `clean` before it is written."""
    structlog.get_config()["processors"].append(lambda _logger, _level, line: clean(line))
    for handler in logging.getLogger().handlers:
        handler.setFormatter(_CleanFormatter(handler.formatter, clean))


class _LineHandler(logging.Handler):
    """Writes what libraries log to the file of our events."""

    def __init__(self, lines: "_LineFile") -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record).encode()
        except Exception:  # noqa: BLE001  (a message that does not fit its arguments fails nobody who logs)
            self.handleError(record)
        else:
            self._lines.write(line)


class _CleanFormatter(logging.Formatter):
    def __init__(self, formatter: logging.Formatter | None, clean: Callable[[bytes], bytes]) -> None:
        super().__init__()
        self._formatter = formatter or logging.Formatter()
        self._clean = clean

    def format(self, record: logging.LogRecord) -> str:
        return self._clean(self._formatter.format(record).encode()).decode()


def _complete_event(logger: Any, level: str, event: Any) -> Any:
    """One function for what structlog has four for, since every submit passes here."""
    event["level"], event["logger"] = level, event.get("_record", logger).name  # a record: of a library
    event["at"] = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    if request := current_request.get():
        event["request_id"] = request
    return structlog.processors.format_exc_info(logger, level, event) if "exc_info" in event else event


def _encode_event(_logger: Any, _level: str, event: Any) -> bytes:
    """ASCII alone, so that no line of a log is a command to the terminal that shows it."""
    try:
        line = _quickly(event)
    except (TypeError, ValueError, RecursionError):  # half a surrogate pair, for one
        line = b"\xff"
    return line if line.isascii() else _carefully(event).encode()


_quickly = msgspec.json.Encoder(enc_hook=str).encode
_carefully = json.JSONEncoder(default=str).encode


def _set_level(logger: logging.Logger, level: int) -> None:
    """Where it is another: `setLevel` has all loggers forget what they know, one by one."""
    if logger.level != level:
        logger.setLevel(level)


class _LineFile:
    """A file that threads write whole lines to. A full disk loses lines, and fails nothing. `follower` goes on with a
    new file when this one was moved away."""

    def __init__(self, file: BinaryIO, follower: LogFollower | None = None) -> None:
        self._file = file
        self._follower = follower
        self._lock = threading.Lock()

    def write(self, line: bytes) -> None:
        with self._lock, suppress(OSError, ValueError):  # ValueError: it was closed
            if self._follower is not None:
                self._follower.follow()
            self._file.write(line + b"\n")
            self._file.flush()

    def logger(self, name: str = "") -> "_LineLogger":
        return _LineLogger(name, self)


class _LineLogger:
    """What structlog hands finished lines to. One name for each level, which it calls the same way."""

    def __init__(self, name: str, lines: _LineFile) -> None:
        self.name = name
        self.debug = self.info = self.warning = self.error = self.critical = lines.write
