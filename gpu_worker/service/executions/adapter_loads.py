"""Finds the executions that caused the load of a LoRA adapter: the gate charges their tenants for it.

An engine charges a load among the tenants of its batch (policies/adapters.py). The gate does not know what an engine
has loaded: it knows the names of a worker's adapters, but neither its places nor the order in which they become free,
and its own dispatches come in another order than the engine's admissions. An estimate from the log would also be
replaced by the true service at the end. So the worker, which sees each first token, reports the load with the end, and
the gate settles it with the tokens. What the report says is in the log as the service of the end, so each process
folds the same.

The worker applies the engine's own rule to first tokens: an adapter that is not among the last `max_loras` used ones
was loaded for the request. Where two requests wait for one new adapter, the first token decides which one pays. A
worker that does not know the places of its engine (EngineFacts.max_loras) reports no loads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpu_worker.engines.interface import Engine, EngineFacts
from gpu_worker.policies.adapters import LoadedAdapters
from gpu_worker.service.executions.execution import Execution


class AdapterLoads:
    """`live`: the running executions by name."""

    def __init__(self, engine: Engine, live: Mapping[str, Execution]) -> None:
        self._engine = engine
        self._live = live
        self._of: tuple[str, int] | None = None
        """The model and the places of which `_loaded` tells."""
        self._loaded = LoadedAdapters(0, self._in_use)

    def on_first_token(self, execution: Execution) -> bool:
        """Return whether the adapter of the execution was loaded for it."""
        facts, adapter = self._engine.facts, execution.order.terms.model
        if facts.max_loras is None or not facts.has_adapter(adapter):
            return False
        self._follow(facts, facts.max_loras)
        return self._loaded.use(adapter)

    def _follow(self, facts: EngineFacts, places: int) -> None:
        """Begin anew where the engine has another model: it has none of its adapters yet."""
        if self._of != (facts.model, places):
            self._of, self._loaded = (facts.model, places), LoadedAdapters(places, self._in_use)

    def _in_use(self) -> Iterable[str]:
        facts = self._engine.facts
        names = {each.order.terms.model for each in self._live.values() if each.first_token_s and each.result is None}
        return [name for name in sorted(names) if facts.has_adapter(name)]
