"""The gateways that are compared, each as processes in front of an instant worker of its own face.

headgate: front and gate with the log in memory. floor, floor-fast: a bare pass-through (floor_proxy.py), which is what
the ratios are to. LiteLLM's proxy and Portkey's gateway: as they are installed by `make bench-peers`, with one process
each and their default settings. A gateway runs on the first core, everything else
on the others.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.process_cpu import process_cpu_s
from dispatcher.processes.bootstrap import RealIds
from headgate.local.stack import base_environment
from headgate.machine.places import usable
from headgate.machine.processes import Child, Children

HOST = "127.0.0.1"
MODEL = "instant"
START_S = 120.0
CORES = sorted(os.sched_getaffinity(0))
PEERS = Path(".peers")
LITELLM, PORTKEY = (
    PEERS / "litellm/bin/litellm",
    PEERS / "portkey/node_modules/@portkey-ai/gateway/build/start-server.js",
)
LITELLM_CONFIG = """
model_list:
  - model_name: {model}
    litellm_params: {{model: openai/{model}, api_base: {url}/v1, api_key: none}}
"""


class NotInstalled(Exception):
    """The text says what to do."""


@dataclass
class Gateway:
    """`base_url` ends with /v1. `headers`: what its requests need beside the key. `streams`: whether streams work."""

    base_url: str
    key: str
    child: Child | None = None
    headers: tuple[tuple[str, str], ...] = ()
    streams: bool = True

    def used_s(self) -> float:
        """Return the CPU time of the gateway's processes so far, in seconds."""
        if self.child is None:
            return 0.0
        process = psutil.Process(self.child.pid)
        processes = (process, *process.children(recursive=True))
        return sum(process_cpu_s(each.pid) for each in processes)


@contextlib.contextmanager
def first_core() -> Iterator[None]:
    """Start processes on the first core. This process itself stays on the others."""
    os.sched_setaffinity(0, {CORES[0]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, CORES[1:])


def leave_the_first_core() -> None:
    """Raises RuntimeError if this machine has only one core."""
    if len(CORES) < 2:
        raise RuntimeError("a gateway and its load need two cores")
    os.sched_setaffinity(0, CORES[1:])


async def start_headgate(children: Children, _: Path, __: str) -> Gateway:
    environment = {**base_environment(), "HEADGATE_WORKER_SECRET": secrets.token_urlsafe(33)}
    environment |= {"POWERTOOLS_TRACE_DISABLED": "true", "POWERTOOLS_SERVICE_NAME": "headgate"}
    environment |= {"POWERTOOLS_METRICS_NAMESPACE": "headgate"}
    with first_core():
        front = await children.spawn_python(
            "headgate", ["-m", "benchmarks.peers.memory_front"], environment=environment
        )
    made = await front.announcement(START_S)
    worker = ["-m", "benchmarks.peers.instant_server", str(made["position"]), made["entry"]]
    await (await children.spawn_python("worker", worker, environment=environment)).announcement(START_S)
    return Gateway(f"{made['url']}/v1", made["key"], front)


async def start_floor(children: Children, _: Path, worker_url: str, *options: str) -> Gateway:
    with first_core():
        command = ["-m", "benchmarks.peers.floor_proxy", worker_url, *options]
        child = await children.spawn_python("-".join(["floor", *options]), command, environment=base_environment())
    return Gateway(f"{(await child.announcement(START_S))['url']}/v1", "none", child)


async def start_fast_floor(children: Children, folder: Path, worker_url: str) -> Gateway:
    return await start_floor(children, folder, worker_url, "--fast")


async def start_litellm(children: Children, folder: Path, worker_url: str) -> Gateway:
    """Raises NotInstalled."""
    if not LITELLM.exists():
        raise NotInstalled("LiteLLM's proxy is not installed; `make bench-peers` installs it")
    config, port, key = folder / "litellm.yaml", usable(HOST, 0), "sk-" + secrets.token_hex(16)
    config.write_text(LITELLM_CONFIG.format(model=MODEL, url=worker_url))
    environment = {**base_environment(), "LITELLM_MASTER_KEY": key, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    command = [str(LITELLM.absolute()), "--config", str(config), "--host", HOST, "--port", str(port)]
    with first_core():
        child = await children.spawn("litellm", [*command, "--telemetry", "False"], environment=environment)
    return Gateway(f"http://{HOST}:{port}/v1", key, child)


async def start_portkey(children: Children, _: Path, worker_url: str) -> Gateway:
    """Raises NotInstalled."""
    node = shutil.which("node")
    if node is None or not PORTKEY.exists():
        raise NotInstalled("Portkey's gateway is not installed; `make bench-peers` installs it (needs Node and npm)")
    port = usable(HOST, 0)
    with first_core():
        command = [node, str(PORTKEY.absolute()), f"--port={port}", "--headless"]
        child = await children.spawn("portkey", command, environment=base_environment())
    headers = (("x-portkey-provider", "openai"), ("x-portkey-custom-host", f"{worker_url}/v1"))
    return Gateway(f"http://{HOST}:{port}/v1", "none", child, headers)


STARTS: dict[str, Callable[[Children, Path, str], Awaitable[Gateway]]] = {
    "floor": start_floor,
    "floor-fast": start_fast_floor,
    "headgate": start_headgate,
    "portkey": start_portkey,
    "litellm": start_litellm,
}


async def start_worker(children: Children) -> str:
    """Start the instant worker of the peers. Return its address."""
    worker = await children.spawn_python(
        "instant", ["-m", "benchmarks.peers.instant_server"], environment=base_environment()
    )
    return str((await worker.announcement(START_S))["url"])


@contextlib.asynccontextmanager
async def running(names: list[str]) -> AsyncIterator[tuple[dict[str, Gateway], list[str]]]:
    """Yield the gateways by name, the worker itself as "direct", and a line for each one that is not installed."""
    leave_the_first_core()
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as place:
        children = Children(RealIds().new(), Path(place) / "logs")
        try:
            yield await _started(names, children, Path(place))
        finally:
            await children.stop()
            os.sched_setaffinity(0, CORES)


async def _started(names: list[str], children: Children, folder: Path) -> tuple[dict[str, Gateway], list[str]]:
    url = await start_worker(children)
    gateways, missing = {"direct": Gateway(f"{url}/v1", "none")}, []
    for name in names:
        try:
            gateways[name] = await STARTS[name](children, folder, url)
        except NotInstalled as error:
            missing.append(str(error))
    return gateways, missing
