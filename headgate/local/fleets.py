"""The processes of all pools on one machine: a fleet for each group of workers, and one for the fronts before them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence

from dispatcher.executor import ONLY_BATCHES
from headgate.local.fleet import FRONT, WORKER, LocalFleet
from headgate.local.options import ProcessAddress, StackOptions, WorkerGroup
from headgate.local.processes import Child, Children


class Fleets:
    """`environment` holds the variables of gate and machine, without HEADGATE_POOL."""

    def __init__(self, options: StackOptions, children: Children, environment: Mapping[str, str]) -> None:
        self._fronts = LocalFleet(options, children, environment, "", [ONLY_BATCHES])
        self._workers = [
            LocalFleet(
                options.model_copy(update=dict(group.values)),
                children,
                {**environment, "HEADGATE_POOL": group.pool},
                group.pool,
                label=label,
            )
            for group, label in zip(options.groups, _labels(options.groups), strict=True)
        ]

    @property
    def addresses(self) -> list[ProcessAddress]:
        return [address for fleet in self._all for address in fleet.addresses]

    def front_urls(self) -> list[str]:
        return self._fronts.urls(FRONT)

    def has(self, child: Child) -> bool:
        return any(fleet.member_of(child) is not None for fleet in self._all)

    def reasons(self, role: str) -> str:
        return "; ".join(filter(None, (fleet.reasons(role) for fleet in self._all)))

    def missing_role(self) -> str | None:
        """Return "front" or "worker" if no such process is left, so that no request can be served; else None."""
        return next((role for role in (FRONT, WORKER) if not any(fleet.urls(role) for fleet in self._all)), None)

    async def start(self, ports: Sequence[int], *, executors: int) -> None:
        """Start the gates, then the workers, executors, and a front on each port. Raises ChildDied, TimeoutError."""
        await asyncio.gather(*(fleet.start_gates() for fleet in self._workers))
        await asyncio.gather(
            *(fleet.start_workers() for fleet in self._workers),
            self._fronts.start_fronts(ports, executors=executors),
        )

    async def stop(self, grace_s: float) -> None:
        """End the fronts, then the workers and their gates, each with `grace_s` seconds before it is killed."""
        await self._fronts.stop(grace_s)
        await asyncio.gather(*(fleet.stop(grace_s) for fleet in self._workers))

    @property
    def _all(self) -> list[LocalFleet]:
        return [self._fronts, *self._workers]


def _labels(groups: Sequence[WorkerGroup]) -> list[str]:
    """Return what comes before the names of each group's processes; nothing if there is one group."""
    if len(groups) == 1:
        return [""]
    of_pool, seen = Counter(group.pool for group in groups), Counter[str]()
    labels = []
    for group in groups:
        labels.append(f"{group.pool}-{seen[group.pool]}-" if of_pool[group.pool] > 1 else f"{group.pool}-")
        seen[group.pool] += 1
    return labels
