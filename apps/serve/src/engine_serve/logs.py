"""The server's log on standard error: lines of text, or JSON objects for programs that collect logs."""

from __future__ import annotations

import json
import logging
import sys
import time
import warnings
from typing import Final

from engine_serve.tracing import current_trace

_OWN: Final = ("model", "status", "path")
"""The fields of our messages beside their text."""


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and the message's fields beside its text."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON, without the line break."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        found = {
            "time": f"{stamp}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        found |= {name: getattr(record, name) for name in _OWN if hasattr(record, name)}
        if trace := current_trace():
            found["trace_id"] = trace
        if record.exc_info:
            found["traceback"] = self.formatException(record.exc_info)
        return json.dumps(found, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """One line, in which line breaks of the message are escaped, so that a name cannot forge a log line."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """The message as one line: line breaks in it are escaped."""
        record.message = record.message.replace("\n", "\\n").replace("\r", "\\r")
        return super().formatMessage(record)


def configure_logs(form: str) -> None:
    """Write the log and the warnings of the process to standard error, as "text" or "json"; of KServe only warnings."""
    logging.captureWarnings(True)
    warnings.filterwarnings("ignore", "ORJSONResponse is deprecated")  # which KServe uses
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("engine").setLevel(logging.INFO)
    for name in ("kserve", "kserve.trace", "uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(logging.WARNING)
