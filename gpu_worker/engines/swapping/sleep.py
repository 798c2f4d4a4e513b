"""Engines that can sleep: the device's memory becomes free, the weights stay in host memory, and the server lives on.

Waking such an engine copies the weights back, which takes seconds where a start takes a minute. An engine that cannot
sleep is stopped instead (sleeping_engines.py).
"""

from __future__ import annotations

from typing import Protocol, cast

from gpu_worker.engines.interface import Engine


class SleepFailed(Exception):
    """The engine did not fall asleep, or did not wake up. It can only be stopped."""


class SleepableEngine(Engine, Protocol):
    """An engine that may be able to sleep. Neither method is called while a request runs."""

    @property
    def sleep_bytes(self) -> int | None:
        """Bytes of host memory that the engine takes while it sleeps; None if it cannot sleep."""

    async def fall_asleep(self) -> None:
        """Free the device's memory, and keep the weights in host memory. Raises SleepFailed."""

    async def wake(self) -> None:
        """Serve again, with the same weights. Raises SleepFailed."""


def sleepable(engine: Engine) -> SleepableEngine | None:
    """Return the engine if it can sleep, otherwise None."""
    if getattr(engine, "sleep_bytes", None) is None:
        return None
    return cast(SleepableEngine, engine)
