"""Hands our scheduler's stats to the worker: `GET /headgate/stats` of vLLM's server.

The scheduler is in the engine core's process. Its stats travel as part of vLLM's own stats (SchedulerStats), which the
core sends with the outputs of a step. vLLM's stats have no field per tenant; the only field with a free form is that of
a KV connector's stats. So the scheduler adds its stats there (reports.py), whether there is a connector or not.

A stat logger in the API server's process keeps the latest ones. It takes them out, because vLLM's own loggers fail on
stats of a connector that is not configured. vLLM has plugins for stat loggers and for endpoints, found by the entry
points of installed packages. They would be loaded into every vLLM of the environment, also where no worker runs. The
`--middleware` option names a class for this server alone. So the middleware registers the logger, before the server
takes its first request. That reads `logger_manager` and `stat_loggers`, which are not public: tests/vllm runs at every
upgrade.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.metrics.loggers import AggregateStatLoggerBase

from gpu_worker.engines.vllm.reports import STATS_KEY

_PATH = "/headgate/stats"
_NO_STATS = "null"


class StatsLogger(AggregateStatLoggerBase):  # type: ignore[misc]
    """Keeps the latest stats of our scheduler, as JSON."""

    def __init__(self, vllm_config: Any = None, engine_indexes: list[int] | None = None) -> None:
        self.latest = _NO_STATS

    def record(
        self,
        scheduler_stats: Any,
        iteration_stats: Any,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        found = getattr(scheduler_stats, "kv_connector_stats", None)
        if found and STATS_KEY in found:
            self.latest = found.pop(STATS_KEY)
            scheduler_stats.kv_connector_stats = found or None

    def log_engine_initialized(self) -> None:
        """Do nothing."""


class StatsEndpoint:
    """ASGI middleware of vLLM's server."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._logger = StatsLogger()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            loggers = scope["app"].state.engine_client.logger_manager.stat_loggers
            loggers.insert(0, self._logger)  # before vLLM's own: it takes our stats out
        if scope["type"] == "http" and scope["path"] == _PATH:
            await self._answer(send)
        else:
            await self._app(scope, receive, send)

    async def _answer(self, send: Any) -> None:
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": self._logger.latest.encode()})
