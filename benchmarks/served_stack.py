"""`headgate serve` as a process of its own, for benchmarks over real HTTP: the modelled engine and the SQLite store."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from dispatcher.monitor.follower import open_follower
from dispatcher.processes.bootstrap import RealClock, make_store
from headgate.cli.terminal.gate_store import gate_config

START_S = 180.0
LEADER = "leader"
ROLES = {
    "functions.http_api.server": "front",
    "dispatcher": "gate",
    "gpu_worker": "worker",
    "dispatcher.executor": "executor",
}


class Stack:
    """A stack that serves. `keys`: the API key of each tenant that the start created, by the tenant's id."""

    def __init__(self, process: subprocess.Popen[str], announced: dict[str, Any]) -> None:
        self.process = process
        self.urls: list[str] = announced["openai_base_urls"]
        self.model, self.data = announced["model"], announced["data"]
        self.keys: dict[str, str] = announced["api_keys"]
        self._ready_at: dict[int, float] = {}
        """When each process was first seen ready, by the monotonic clock."""
        config = gate_config(Path(self.data))
        self._clock = RealClock()
        self._store = make_store(config)
        self._log = open_follower(self._store, config, self._clock)

    def processes(self) -> list[tuple[str, int]]:
        """Return role and id of each process that it runs now."""
        found = []
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                role = _role(child.cmdline())
                if role:
                    found.append((role, child.pid))
        return found

    async def ready_processes(self, ready_s: float) -> list[tuple[str, int]]:
        """Return role and id of each process that was first seen ready at least `ready_s` seconds ago.

        A process is ready when it listens. The executor, which does not listen, is ready when it starts. The gate
        process that leads has the role LEADER.
        """
        await self._log.catch_up()
        leader_port = self._log.picture(self._clock.now()).leader.rpartition(":")[2]
        found, now = [], time.monotonic()
        for role, pid in self.processes():
            with contextlib.suppress(psutil.Error):
                ports = _ports(psutil.Process(pid))
                if (ports or role == "executor") and now - self._ready_at.setdefault(pid, now) >= ready_s:
                    found.append((LEADER if role == "gate" and leader_port in ports else role, pid))
        return found

    async def read(self, *arguments: str) -> Any:
        """Run a command of headgate on its data folder and return its JSON object."""
        command = [sys.executable, "-m", "headgate.cli", *arguments, "--data", self.data, "--json"]
        ran = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
        return json.loads(ran.stdout)

    async def close(self) -> None:
        await self._store.close()


@contextlib.asynccontextmanager
async def served(
    *, fronts: int, workers: int, slots: int, tenants: str = "", engine: Sequence[str] = ("modelled",)
) -> AsyncIterator[Stack]:
    """Start a stack and stop it at the end. `tenants`: the text of a file for `--tenants`; empty: one default tenant.
    `engine`: the engine's name and its options.

    Raises RuntimeError with the ends of the logs if it does not start.
    """
    with tempfile.TemporaryDirectory(prefix="headgate-served-") as folder:
        command = [sys.executable, "-m", "headgate.cli", "serve", "--engine", *engine, "--json", "--data", folder]
        command += ["--port", str(_port()), "--fronts", str(fronts), "--workers", str(workers), "--slots", str(slots)]
        command += ["--start-timeout", str(START_S)]
        if tenants:
            path = Path(folder) / "tenants.yaml"
            path.write_text(tenants)
            command += ["--tenants", str(path)]
        process = await asyncio.to_thread(subprocess.Popen, command, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            line = await asyncio.to_thread(process.stdout.readline)
            if not line:
                raise RuntimeError(f"the stack did not start: {_logs(Path(folder))}")
            stack = Stack(process, json.loads(line))
            try:
                yield stack
            finally:
                await stack.close()
        finally:
            process.send_signal(signal.SIGINT)
            await asyncio.to_thread(process.wait)


def _role(command: list[str]) -> str:
    for module, role in ROLES.items():
        if any(part == module or part.startswith((f"{module}.", f"{module}:")) for part in command):
            return role
    return ""


def _ports(process: psutil.Process) -> set[str]:
    """Return the ports at which the process listens."""
    return {str(each.laddr.port) for each in process.net_connections("tcp") if each.status == psutil.CONN_LISTEN}


def _port() -> int:
    """Return a port for the first front, below those that the kernel gives to other processes."""
    return 20_000 + os.getpid() % 1_000 * 10


def _logs(folder: Path) -> str:
    return "\n".join(path.read_text()[-2000:] for path in folder.glob("logs/*.log"))
