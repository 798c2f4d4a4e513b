"""Stand-ins for ECS: a task is a process for each of its containers, and a service starts and stops tasks.

A process has the command and the variables of its container. Replaced are what one machine cannot have: fixed ports,
addresses of a network of its own, folders at the root, and the GPU (vLLM becomes the modelled engine).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from headgate.machine.processes import Child, Children
from tests.rehearsal.moto_stack import Container, WorkersOf

POLL_S = 1.0
READY_S = 120.0
STOP_S = 30.0
HERE = "127.0.0.1"


class Task:
    """The processes of one running task. `urls`: what they announced, by container."""

    def __init__(self, name: str, home: Path, children: Children, local: Mapping[str, str]) -> None:
        self.name, self.urls = name, dict[str, str]()
        self._home, self._children, self._local = home, children, local
        self._processes: list[Child] = []

    async def start(self, containers: Sequence[Container], ports: Mapping[str, int] | None = None) -> None:
        """Start the containers in order. `ports`: of those that announce none. Raises ChildDied, TimeoutError."""
        for container in containers:
            if container.name == "weights":
                continue  # nothing to copy: the modelled engine has no weights
            port = (ports or {}).get(container.name, 0)
            command = _local_command(container.command[1:], self._home, port)
            environment = {**container.environment, **self._local, "HOME": str(self._home)}
            child = await self._children.spawn_python(f"{self.name}-{container.name}", command, environment=environment)
            self._processes.append(child)
            if port == 0:
                announced = await child.announcement(READY_S)
                self.urls[container.name] = str(announced.get("url", ""))

    async def stop(self) -> None:
        """Send SIGTERM to the last container first, as its gate process must outlive it."""
        for child in reversed(self._processes):
            await child.stop(STOP_S)


def _local_command(command: Sequence[str], home: Path, port: int) -> list[str]:
    """Return the arguments of a container's command for this machine."""
    words = list(command[: command.index("--")] if "--" in command else command)
    replaced = {"--host": HERE, "--port": str(port), "--engine": "modelled", "--home": str(home)}
    for option, value in replaced.items():
        if option in words:
            words[words.index(option) + 1] = value
    if "--model" in words:
        place = words.index("--model") + 1
        words[place] = Path(words[place]).name
    return words


class Service:
    """The workers' service of a pool: it starts and stops tasks until their number is the desired count in moto."""

    def __init__(self, ecs: Any, pool: str, workers: WorkersOf) -> None:
        self._ecs, self.pool, self._workers = ecs, pool, workers
        self.tasks: list[Task] = []
        self.desired: list[int] = []
        """The desired counts so far, without repetitions."""

    async def run(self, home: Path, children: Children, local: Mapping[str, str]) -> None:
        """Follow the desired count until cancelled."""
        number = 0
        while True:
            wanted = await asyncio.to_thread(self._desired)
            if not self.desired or self.desired[-1] != wanted:
                self.desired.append(wanted)
            if len(self.tasks) < wanted:
                name = f"{self.pool}-{number}"
                task = Task(name, home / name, children, local)
                number += 1
                await task.start(self._workers.containers)
                self.tasks.append(task)
            elif len(self.tasks) > wanted:
                await self.tasks.pop().stop()
            else:
                await asyncio.sleep(POLL_S)

    def _desired(self) -> int:
        describe = partial(self._ecs.describe_services, cluster=self._workers.cluster, services=[self._workers.service])
        (found,) = describe()["services"]
        return int(found["desiredCount"])
