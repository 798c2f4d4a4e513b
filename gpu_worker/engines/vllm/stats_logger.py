"""A stat logger of vLLM that takes our scheduler's reports: it keeps the figures, and shows them on vLLM's /metrics.

The scheduler is in the engine core's process. Its reports travel as part of vLLM's own stats (SchedulerStats), which
the core sends with the outputs of a step. vLLM's stats have no field per tenant; the only field with a free form is
that of a KV connector's stats. So the scheduler adds its reports there (reports.py), whether there is a connector or
not, and whichever it is. This logger takes them out, because vLLM's own loggers fail on stats of a connector that is
not configured.

vLLM loads the logger as a plugin: the entry point `headgate` of `vllm.stat_logger_plugins` (pyproject.toml), with
`VLLM_PLUGINS` as for any plugin. It stands before vLLM's own loggers. vLLM loads it in the process that is about to
start the engine core, and only where that process will hand it the stats. So the import of this module sets
LOGGER_VARIABLE, which the engine core inherits: a scheduler without this logger sends nothing (settings.py). With
another scheduler the logger does nothing. With any stat logger plugin, vLLM makes its stats also under
`--disable-log-stats`.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from typing import Any

from prometheus_client import REGISTRY
from vllm.v1.metrics.loggers import AggregateStatLoggerBase

from gpu_worker.engines.vllm.figures import KnownFigures
from gpu_worker.engines.vllm.metrics import TenantCollector
from gpu_worker.engines.vllm.reports import STATS_KEY
from gpu_worker.engines.vllm.settings import LOGGER_VARIABLE

os.environ[LOGGER_VARIABLE] = "1"
_log = logging.getLogger(__name__)


class StatsLogger(AggregateStatLoggerBase):  # type: ignore[misc]
    """`figures`: of each engine core by its number. There are none before the first report."""

    _registered: TenantCollector | None = None
    """The collector of the last logger of this process: the series of one engine."""

    def __init__(self, vllm_config: Any = None, engine_indexes: list[int] | None = None) -> None:
        self.figures: dict[int, KnownFigures] = {}
        self._register(TenantCollector(self.figures))

    def record(
        self,
        scheduler_stats: Any,
        iteration_stats: Any,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        found = getattr(scheduler_stats, "kv_connector_stats", None)
        if not found or STATS_KEY not in found:
            return
        report = found.pop(STATS_KEY)
        scheduler_stats.kv_connector_stats = found or None
        try:
            self.figures.setdefault(engine_idx, KnownFigures()).apply(report)
        except ValueError as error:  # an engine core of another version; vLLM would end all requests
            _log.warning("%s", error)

    def log_engine_initialized(self) -> None:
        """Do nothing."""

    @classmethod
    def _register(cls, collector: TenantCollector) -> None:
        if StatsLogger._registered is not None:
            with suppress(KeyError):
                REGISTRY.unregister(StatsLogger._registered)
        REGISTRY.register(collector)
        StatsLogger._registered = collector
