"""`pools.X.worker` of headgate.yaml: how a worker orders its engine's requests, and what it keeps for evicted ones."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from gpu_worker.policies.configured import make_queue
from gpu_worker.service.tiers_file import WorkerTiers


class WorkerSettings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    policy: Annotated[str, Field(max_length=64)] = "tiered:vtc"
    """The policy of the engine's queue (gpu_worker/policies/fairness/registry.py)."""
    swap_gib: Annotated[float, Field(ge=0, le=10_000)] = 0.0
    """Host memory for the KV cache of evicted requests. 0: they are computed again."""
    tiers: WorkerTiers | None = None
    """Shares, preemption, targets and shedding, as in examples/worker-tiers.yaml. None: the defaults."""

    @model_validator(mode="after")
    def _agrees(self) -> WorkerSettings:
        try:
            make_queue(self.policy, None if self.tiers is None else self.tiers.for_queue())
            if self.tiers is not None:
                self.tiers.shedder()
        except ValueError as error:
            raise PydanticCustomError("worker", "{problem}", {"problem": " ".join(str(error).split())}) from None
        return self

    def arguments(self) -> list[str]:
        """Return the arguments of the worker."""
        own = ["--policy", self.policy, "--swap-gib", f"{self.swap_gib:g}"]
        tiers = [] if self.tiers is None else ["--tiers", self.tiers.model_dump_json(exclude_unset=True)]
        return [*own, *tiers]
