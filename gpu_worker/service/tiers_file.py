"""The operator's settings of tiers, SLOs and shedding: `--tiers FILE` with YAML, or `--tiers '{…}'` with JSON. Every
field is optional.

queue:        # gpu_worker/policies/tiers.py; needs --policy tiered:...
  shares: {premium: 0.5, standard: 0.35, background: 0.15}
  premium_reserve: 0.3
slo:          # gpu_worker/policies/slo.py
  window_s: 60
  targets:
    premium: {ttft_s: 0.2, tpot_s: 0.03, e2e_s: 5}
shedding:     # gpu_worker/policies/shedding.py
  calm_s: 30
applications: # gpu_worker/policies/fairness/wsc.py: the application of a tenant, for a policy `wsc`
  acme: assistant
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import Field, ModelWrapValidatorHandler, PrivateAttr, model_validator
from pydantic_core import to_jsonable_python

from dispatcher.settings.strict import Strict
from dispatcher.settings.yaml_file import read_document, read_text
from gpu_worker.policies.shedding import Shedder, ShedSettings
from gpu_worker.policies.slo import TARGETS, SloMonitor, SloSettings
from gpu_worker.policies.tiers import TierSettings


class WorkerTiers(Strict):
    """The whole file. A field that is missing or null has its class's default; `targets` lacks no tier's default."""

    queue: TierSettings | None = None
    slo: SloSettings = Field(default_factory=SloSettings)
    shedding: ShedSettings = Field(default_factory=ShedSettings)
    applications: dict[str, str] = Field(default_factory=dict)
    _given: dict[str, Any] = PrivateAttr(default_factory=dict)
    """The fields that the file has, as JSON values."""

    @model_validator(mode="wrap")
    @classmethod
    def _keep_given(cls, value: Any, validate: ModelWrapValidatorHandler[WorkerTiers]) -> WorkerTiers:
        given = _without_nulls(value)
        tiers = validate(given)
        if isinstance(given, Mapping):
            tiers._given = _select(to_jsonable_python(tiers, fallback=dict), given)
        return tiers

    def given(self) -> dict[str, Any]:
        """Return the fields that the file has, as JSON values."""
        return self._given

    def for_queue(self) -> dict[str, Any] | None:
        """Return the queue section as plain values for the engine; None if the file has none."""
        return self._given.get("queue")

    def priced(self, cached_fraction: float, adapter_load_tokens: int) -> dict[str, Any]:
        """Return the queue section with the gate's price of cached tokens, and with its price of an adapter's load
        where the file has none. Raises ValueError if the file has another price of cached tokens."""
        queue = self.for_queue() or {}
        if queue.get("cached_fraction", cached_fraction) != cached_fraction:
            raise ValueError(
                f"--tiers: cached_fraction is {queue['cached_fraction']}, and the gate charges {cached_fraction} "
                "(HEADGATE_CACHED_FRACTION): leave it out of the file"
            )
        return {"adapter_load_tokens": adapter_load_tokens, **queue, "cached_fraction": cached_fraction}

    def shedder(self) -> Shedder:
        return Shedder(SloMonitor(replace(self.slo, targets={**TARGETS, **self.slo.targets})), self.shedding)


def load_tiers(given: str) -> WorkerTiers:
    """Read and check the file, or the JSON object. Raises ConfigurationError with one line that names the place and
    its mistake."""
    is_json = given.startswith("{")
    document = read_text("the settings", given) if is_json else read_document(Path(given), may_be_empty=True)
    return document.parse(WorkerTiers)


def _without_nulls(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {key: _without_nulls(each) for key, each in value.items() if each is not None}


def _select(values: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of which the names are given, in mappings below too."""
    return {
        name: _select(value, given[name]) if isinstance(value, dict) else value
        for name, value in values.items()
        if name in given
    }
