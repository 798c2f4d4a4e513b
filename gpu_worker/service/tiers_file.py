"""The operator's settings of tiers, SLOs and shedding: `--tiers FILE` with YAML, or `--tiers '{…}'` with JSON. Every
field is optional.

queue:        # gpu_worker/policies/tiers/settings.py; needs --policy tiered:...
  shares: {premium: 0.5, standard: 0.35, background: 0.15}
  premium_reserve: 0.3
slo:          # gpu_worker/policies/slo/monitor.py
  window_s: 60
  targets:
    premium: {ttft_s: 0.2, tpot_s: 0.03, e2e_s: 5}
shedding:     # gpu_worker/policies/slo/shedding.py
  calm_s: 30
"""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dispatcher.policies.tiers import Tier
from gpu_worker.policies.slo.monitor import TARGETS, SloMonitor, SloSettings, SloTargets
from gpu_worker.policies.slo.shedding import Shedder, ShedSettings
from gpu_worker.policies.tiers.settings import tier_settings

FILE_BYTES_MAX = 100_000
TenantTier = Literal[Tier.PREMIUM, Tier.STANDARD, Tier.BACKGROUND]
Part = Annotated[float, Field(ge=0, le=1)]
NotNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]


class _Section(BaseModel):
    """A section of the file. A field that is missing or null has the default of the settings class."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def given(self) -> dict[str, Any]:
        return {name: value for name in self.model_fields_set if (value := getattr(self, name)) is not None}


class QueueSection(_Section):
    """Fields of TierSettings; its docstring explains them."""

    shares: dict[TenantTier, Part] | None = None
    """Parts of the service, together at most 1. A tier that is missing, or 0, has no guaranteed share."""
    share_slack: NotNegative | None = None
    """Service units; 0: a tier goes first as soon as it is behind its share."""
    aging_per_s: NotNegative | None = None
    """The ranks by which a request improves for each second of waiting; 0: no aging."""
    aging_max: NotNegative | None = None
    """The most ranks by which waiting improves a request; 0: no aging."""
    deficit_factor: NotNegative | None = None
    """The ranks by which a missing share of 1 improves a request; 0: a missing share does not change ranks."""
    preemption: bool | None = None
    preemptions_max: Annotated[int, Field(ge=0)] | None = None
    """The most preemptions of one request; 0: no request is evicted (`promote`), or an evicted request ends (`end`)."""
    at_limit: Literal["promote", "end"] | None = None
    may_drop: frozenset[TenantTier] | None = None
    lead_max: Positive | None = None
    """Service units over weight by which a tenant may be ahead of another of its tier before its requests are evicted
    for the other's; missing: tenants of one tier do not evict each other's requests."""
    premium_reserve: Annotated[float, Field(ge=0, lt=1)] | None = None
    """The part of the KV blocks that only premium may use; 0: no reserve."""
    cached_fraction: Part | None = None
    """Price of a prompt token from the prefix cache, relative to a computed one; 0: free. The gate has the same price,
    HEADGATE_CACHED_FRACTION; another one here is refused."""


class TargetsSection(_Section):
    """Seconds; missing or null: no target."""

    ttft_s: Positive | None = None
    tpot_s: Positive | None = None
    e2e_s: Positive | None = None

    def targets(self) -> SloTargets:
        return SloTargets(self.ttft_s or inf, self.tpot_s or inf, self.e2e_s or inf)


class SloSection(_Section):
    """Fields of SloSettings."""

    targets: dict[TenantTier, TargetsSection] = Field(default_factory=dict)
    """A tier that is missing keeps the default targets."""
    window_s: Positive | None = None
    """Seconds of the rolling window."""
    samples_max: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """The most samples that are kept for each tier and kind."""
    goal: Part | None = None
    """A tier is at risk if a smaller part of its requests meets the target; 0: never."""
    samples_min: Annotated[int, Field(ge=1)] | None = None
    misses_min: Annotated[int, Field(ge=1)] | None = None


class SheddingSection(_Section):
    """Fields of ShedSettings; times in seconds."""

    enabled: bool | None = None
    patience_s: NotNegative | None = None
    """0: standard is shed as soon as shedding background has no effect."""
    calm_s: NotNegative | None = None
    """0: a tier is accepted again at the first check that finds no risk."""
    calm_max_s: NotNegative | None = None
    check_s: NotNegative | None = None
    """0: the level is decided at every event."""
    retry_min_s: NotNegative | None = None
    retry_max_s: NotNegative | None = None


class WorkerTiers(_Section):
    """The whole file."""

    queue: QueueSection | None = None
    slo: SloSection = SloSection()
    shedding: SheddingSection = SheddingSection()

    def for_queue(self) -> dict[str, Any] | None:
        """Return the queue section as plain values for the engine; None if the file has none."""
        if self.queue is None:
            return None
        return self.queue.model_dump(mode="json", exclude_unset=True, exclude_none=True)

    def priced(self, cached_fraction: float) -> dict[str, Any]:
        """Return the queue section with the gate's price of cached tokens. Raises ValueError if the file has
        another."""
        queue = self.for_queue() or {}
        if queue.get("cached_fraction", cached_fraction) != cached_fraction:
            raise ValueError(
                f"--tiers: cached_fraction is {queue['cached_fraction']}, and the gate charges {cached_fraction} "
                "(HEADGATE_CACHED_FRACTION): leave it out of the file"
            )
        return {**queue, "cached_fraction": cached_fraction}

    def shedder(self) -> Shedder:
        """Make the shedder of these settings. Raises ValueError for values that contradict each other."""
        slo = self.slo.given()
        slo["targets"] = {**TARGETS, **{tier: each.targets() for tier, each in self.slo.targets.items()}}
        return Shedder(SloMonitor(SloSettings(**slo)), ShedSettings(**self.shedding.given()))


def _text_of(path: Path) -> bytes:
    """Raises OSError, ValueError."""
    with path.open("rb") as file:
        text = file.read(FILE_BYTES_MAX + 1)
    if len(text) > FILE_BYTES_MAX:
        raise ValueError(f"is longer than {FILE_BYTES_MAX} bytes")
    return text


def load_tiers(given: str) -> WorkerTiers:
    """Read and check the file, or the JSON object. Raises ValueError with one line that names the field and its
    mistake."""
    path = "the settings" if given.startswith("{") else given
    try:
        read = yaml.safe_load(given if given.startswith("{") else _text_of(Path(given)))
        tiers = WorkerTiers.model_validate({} if read is None else read)
        tier_settings(tiers.for_queue() or {})
        tiers.shedder()
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except RecursionError:
        raise ValueError(f"{path} is not a YAML file of settings: it is nested too deeply") from None
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not YAML: {' '.join(str(error).split())[:200]}") from None
    except ValidationError as error:
        finding = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in finding["loc"]) or "the whole"
        unknown = finding["type"] == "extra_forbidden"
        raise ValueError(f"{path}: {place}: {'no such setting' if unknown else finding['msg']}") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return tiers
