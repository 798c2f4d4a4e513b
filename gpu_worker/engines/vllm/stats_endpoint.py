"""Hands our scheduler's figures to the worker: `GET /headgate/stats?since=N` of vLLM's server.

The answer has what changed since version N of the figures (figures.py), so a poll costs what changed, and not what
there is. The figures are kept by the stat logger (stats_logger.py). `--middleware` names this class for the worker's
server alone. It takes the logger that vLLM loaded as a plugin, or registers one before the server takes its first
request. That reads `logger_manager` and `stat_loggers`, which are not public: tests/vllm runs at every upgrade.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs

from gpu_worker.engines.vllm.stats_logger import StatsLogger

_PATH = "/headgate/stats"


class StatsEndpoint:
    """ASGI middleware of vLLM's server."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._logger: StatsLogger | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            self._logger = _find_logger(scope["app"].state.engine_client.logger_manager.stat_loggers)
        if scope["type"] == "http" and scope["path"] == _PATH:
            await self._answer(send, _since(scope["query_string"]))
        else:
            await self._app(scope, receive, send)

    async def _answer(self, send: Any, since: int) -> None:
        known = None if self._logger is None else self._logger.figures.get(0)
        body = json.dumps(None if known is None else known.changes_since(since), separators=(",", ":"))
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body.encode()})


def _find_logger(loggers: list[Any]) -> StatsLogger:
    for each in loggers:
        if isinstance(each, StatsLogger):
            return each
    loggers.insert(0, logger := StatsLogger())  # before vLLM's own: it takes our reports out
    return logger


def _since(query: bytes) -> int:
    """Return the version that the query names; 0 for none."""
    (text,) = parse_qs(query.decode("latin-1")).get("since", ["0"])[:1]
    return int(text) if text.isdecimal() else 0
