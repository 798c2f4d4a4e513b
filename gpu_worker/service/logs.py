"""The worker's log: one JSON object a line. It names executions and never holds a prompt or generated text."""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from types import TracebackType
from typing import Any

_MESSAGE_CHARS_MAX = 1000
_FRAMES_MAX = 20
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


class JsonLines(logging.Formatter):
    """Formats a record as a line of JSON. The fields of `extra` are keys beside the message. Of an exception, the type
    and the place are logged, but not its message, which may contain a prompt."""

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        fields: dict[str, Any] = {
            "at": f"{at}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage()[:_MESSAGE_CHARS_MAX],
            **{name: value for name, value in vars(record).items() if name not in _OWN},
        }
        if record.exc_info and record.exc_info[0] is not None:
            fields["error"] = record.exc_info[0].__name__
            fields["where"] = _where(record.exc_info[2])
        return json.dumps(fields, default=lambda value: type(value).__name__)


def log_json(level: int = logging.INFO) -> None:
    """Write this process's whole log to standard error, as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(handlers=[handler], level=level, force=True)
    for name in ("httpx", "botocore", "boto3", "urllib3", "uvicorn.access"):
        logging.getLogger(name).setLevel(logging.WARNING)


def _where(trace: TracebackType | None) -> list[str]:
    frames = traceback.extract_tb(trace)[-_FRAMES_MAX:]
    return [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
