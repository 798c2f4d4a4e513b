"""Sets the desired number of a pool's workers, from the load that the log shows (scale.py decides)."""

from __future__ import annotations

from dispatcher.model.errors import StoreUnavailable
from dispatcher.model.scaling import FleetLoad, FleetScaler, ScaleReport, ServiceCount
from dispatcher.operations.scale import ScaleSettings, ScaleState, scale
from dispatcher.ports import Clock


class Scaling:
    """`scaler` None: nothing is set, and the workers in the log count as the desired number.

    The state is in memory. A new process begins with none: its hold begins anew, and the capacity and the start-up are
    measured again.
    """

    def __init__(self, scaler: FleetScaler | None, settings: ScaleSettings, clock: Clock) -> None:
        self._scaler, self._settings, self._clock = scaler, settings, clock
        self._state = ScaleState()

    async def sweep(self, load: FleetLoad) -> ScaleReport:
        """Decide, and set the number if it changes. A problem with the service is in the report: the sweep goes on."""
        try:
            count = await self._count(load)
        except StoreUnavailable as error:
            return ScaleReport(None, error.message)
        existing = max(count.existing, load.ready + load.leaving)
        decision = scale(self._settings, self._state, load, count.desired, existing, self._clock.now())
        if self._scaler is not None and decision.workers != count.desired:
            try:
                await self._scaler.set(decision.workers)
            except StoreUnavailable as error:
                return ScaleReport(decision.workers, error.message)
        self._state = decision.state
        return ScaleReport(decision.workers)

    async def _count(self, load: FleetLoad) -> ServiceCount:
        if self._scaler is None:
            return ServiceCount(load.ready, load.ready + load.leaving)
        return await self._scaler.count()
