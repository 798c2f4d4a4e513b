"""The workers of a pool as tasks of an ECS service. ECS starts and stops tasks until their number is the desired one.

A launch that fails is repeated by ECS, and an interrupted task is replaced, because the desired count stays.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from functools import partial
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from dispatcher.model.errors import StoreUnavailable
from dispatcher.model.fleet import ServiceCount

TASK_ID = re.compile(r"[0-9a-f]{32}")
KEPT_MINUTES = 3
"""ECS stops tasks within seconds of a smaller number. A protection blocks deployments, so it ends soon after."""
_TASKS_MAX = 10
"""UpdateTaskProtection takes so many tasks at a time."""


class EcsService:
    """dispatcher.model.fleet.FleetScaler. A worker of the service has the id of its task as its name
    (gpu_worker/service/task_id.py)."""

    def __init__(self, client: Any, cluster: str, service: str) -> None:
        self._client, self._cluster, self._service = client, cluster, service

    async def count(self) -> ServiceCount:
        found = await self._call("describe_services", services=[self._service])
        services = [each for each in found["services"] if each["status"] == "ACTIVE"]
        if not services:
            raise StoreUnavailable(f"There is no active ECS service {self._cluster}/{self._service}.")
        running, pending = services[0]["runningCount"], services[0]["pendingCount"]
        return ServiceCount(services[0]["desiredCount"], running + pending)

    async def keep(self, workers: Sequence[str], leaver: str = "") -> None:
        """Protect the tasks from scale-in for KEPT_MINUTES. End the leaver's protection, which it may have from the
        last scale-in. A worker that is no task of ECS needs no protection.

        Source: ECS's API reference, "UpdateTaskProtection".
        """
        for tasks in _in_tens(_tasks(workers)):
            await self._protect(tasks, protectionEnabled=True, expiresInMinutes=KEPT_MINUTES)
        if leaving := _tasks([leaver]):
            await self._protect(leaving, protectionEnabled=False)

    async def _protect(self, tasks: list[str], **protection: Any) -> None:
        answer = await self._call("update_task_protection", tasks=tasks, **protection)
        reasons = {each["reason"] for each in answer["failures"]} - {"MISSING"}  # those have ended
        if reasons:
            raise StoreUnavailable(f"ECS does not protect the other workers: {', '.join(sorted(reasons))}.")

    async def set(self, workers: int) -> None:
        await self._call("update_service", service=self._service, desiredCount=workers)

    async def _call(self, operation: str, **arguments: Any) -> Any:
        """Call ECS in a thread. Raises StoreUnavailable."""
        try:
            return await asyncio.to_thread(
                partial(getattr(self._client, operation), cluster=self._cluster, **arguments)
            )
        except ClientError as error:
            raise StoreUnavailable(f"ECS refused {operation}: {error.response['Error']['Code']}.") from error
        except BotoCoreError as error:
            raise StoreUnavailable(f"ECS cannot be used: {type(error).__name__}.") from error


def _tasks(workers: Sequence[str]) -> list[str]:
    return [worker for worker in workers if TASK_ID.fullmatch(worker)]


def _in_tens(tasks: list[str]) -> list[list[str]]:
    return [tasks[first : first + _TASKS_MAX] for first in range(0, len(tasks), _TASKS_MAX)]
