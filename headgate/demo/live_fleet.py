"""Plays a fleet's workload in real time against a server of processes, and measures it as a run of the simulator.

Open loop: a request is sent at its time, however many are still running. Only a later stage of an interaction waits
until the stage before it was answered. Requests are streamed completions with as many bytes as the modelled engine
takes for the prompt's tokens, and they name their model and their SLO class. Times are those of the client: the first
token is the first piece of text. The client parses nothing else: with an SDK, it was slower than two workers.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from statistics import fmean

import aiohttp

from dispatcher.model.facts import Entry, ModelOrdered
from dispatcher.model.tenants import Tenant
from dispatcher.monitor.follower import EntryReader, open_follower
from dispatcher.operations.administration import NAME, StoreAdmin
from dispatcher.policies.clocks import Share
from dispatcher.policies.planning.slo import SloClasses
from dispatcher.policies.service import WEIGHTED_TOKENS
from dispatcher.policies.tiers import Tier
from dispatcher.ports import Store
from dispatcher.processes.bootstrap import RealClock, RealIds, make_store
from dispatcher.settings.config import Config, load_config
from gpu_worker.engines.modelled.answers import BYTES_PER_TOKEN
from headgate.serve.folder import ORDER, DataFolder
from headgate.serve.server import ServeOptions, Server
from headgate.simulator.fleet.run import make_place
from headgate.simulator.fleet.spec import FleetSpec
from headgate.simulator.measures.collector import FleetCollector
from headgate.simulator.requests import SimRequest
from headgate.simulator.run import Run, RunSpec, run_of
from headgate.workloads.arrivals import Arrival

LIVE = "live"
"""The name of such a run among the planners."""
_TIMEOUT_S = 3600.0
_READ_EVERY_S = 1.0
_LATE_S = 0.5
"""A client that sends a request later than this is too slow, and what it measures is not the service's doing."""


async def play_fleet(spec: RunSpec, fleet: FleetSpec, options: ServeOptions, report: Callable[[str], None]) -> Run:
    """Start the server, play the workload of the spec, stop the server, and return what was measured. `report`: gets
    what happens meanwhile, such as the end of a process.

    Raises ConfigurationError if the server does not start.
    """
    place = make_place(fleet, SloClasses(fleet.classes), spec.gate)
    requests = [SimRequest(f"r{number}", each, each.arrival_s) for number, each in enumerate(spec.workload)]
    for request in requests:
        place(request)
    server = Server(options, report=report)
    try:
        addresses = await server.start()
        config = load_config({"HEADGATE_STORE": DataFolder(options.home).store, ORDER: options.order})
        store = make_store(config)
        try:
            keys = {**addresses.api_keys, **await _create_tenants(store, spec, fleet, requests, addresses.api_keys)}
            loads = _Loads()
            async with _reading(store, config, loads):
                late_s = await play_requests(addresses.openai_base_url, keys, requests)
        finally:
            await store.close()
    finally:
        await server.stop()
    if late_s > _LATE_S:
        report(f"requests were sent up to {late_s:.1f} s late: this machine is too slow for the workload")
    swapping_s = sum(number * _load_s(fleet, model) for model, number in loads.by_model.items())
    return replace(_measure(spec, requests), loads=dict(sorted(loads.by_model.items())), swapping_s=swapping_s)


def _load_s(fleet: FleetSpec, model: str) -> float:
    """Return what a load of the model takes, in the mean over the workers."""
    return fmean(each.models[model].load_s for each in fleet.workers if model in each.models)


def _measure(spec: RunSpec, requests: list[SimRequest]) -> Run:
    collector = FleetCollector(WEIGHTED_TOKENS, spec.workload.last_arrival_s)
    for request in requests:
        (collector.on_served if request.served else collector.on_rejected)(request)
    run = run_of(replace(spec, planner=LIVE), collector, decisions=0)
    return replace(run, last_arrival_s=spec.workload.last_arrival_s)


@dataclass(slots=True)
class _Loads:
    """The orders to load a model in a log, by model."""

    by_model: Counter[str] = field(default_factory=Counter)

    def note(self, entry: Entry) -> None:
        self.by_model.update(fact.model for fact in entry.facts if isinstance(fact, ModelOrdered) and fact.model)

    def restart(self) -> None:
        """A snapshot has replaced entries: their orders are not counted."""


@asynccontextmanager
async def _reading(store: Store, config: Config, reader: EntryReader) -> AsyncIterator[None]:
    """Show the reader what is written to the log meanwhile."""
    follower = open_follower(store, config, RealClock())
    await follower.catch_up()
    follower.watch(reader)

    async def read() -> None:
        while True:
            await follower.catch_up()
            await asyncio.sleep(_READ_EVERY_S)

    reading = asyncio.create_task(read())
    try:
        yield
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await follower.catch_up()


async def _create_tenants(
    store: Store, spec: RunSpec, fleet: FleetSpec, requests: list[SimRequest], known: Mapping[str, str]
) -> dict[str, str]:
    """Create the workload's tenants that the server has not, and return their keys. A tenant's class is the strictest
    of its requests, because a request may name a laxer one only. One whose name the service does not take has another
    there."""
    rank = {each.name: number for number, each in enumerate(SloClasses(fleet.classes).ordered)}
    classes = dict[str, str]()
    for request in requests:
        own = classes.setdefault(request.tenant, request.slo_class)
        classes[request.tenant] = min(own, request.slo_class, key=rank.__getitem__)
    weights = {**spec.workload.weights, **spec.weights}
    admin = StoreAdmin(store, RealIds(), RealClock(), lambda: "headgate simulate")
    used = {*known, *classes}
    free = (name for number in count(1) if (name := f"tenant-{number}") not in used)
    return {
        name: await admin.create(
            Tenant(
                name if NAME.fullmatch(name) else next(free),
                Share(weights.get(name, 1.0)),
                Tier(spec.workload.tiers.get(name, Tier.STANDARD)),
                queue_items_max=len(requests),
                slo_class=slo_class,
            )
        )
        for name, slo_class in classes.items()
        if name not in known
    }


async def play_requests(base_url: str, keys: Mapping[str, str], requests: Sequence[SimRequest]) -> float:
    """Send the requests at their times, and note in them what came of them. `keys`: of the tenants. Return by how many
    seconds the latest one was sent after its time."""
    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=_TIMEOUT_S)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        return await _Play(session, f"{base_url}/completions", keys).play(requests)


class _Play:
    def __init__(self, session: aiohttp.ClientSession, url: str, keys: Mapping[str, str]) -> None:
        self._session = session
        self._url = url
        self._keys = keys
        self._stages: dict[tuple[str, str], asyncio.Task[None]] = {}
        """The last stage that was sent of each interaction."""
        self._began_s = 0.0

    async def play(self, requests: Sequence[SimRequest]) -> float:
        self._began_s, late_s = time.monotonic(), 0.0
        async with asyncio.TaskGroup() as group:
            for request in requests:
                await asyncio.sleep(request.release_s - self._now_s())
                late_s = max(late_s, self._now_s() - request.release_s)
                interaction = request.tenant, request.interaction
                before = self._stages.get(interaction) if request.interaction else None
                task = group.create_task(self._send(request, before))
                if request.interaction:
                    self._stages[interaction] = task
        return late_s

    def _now_s(self) -> float:
        return time.monotonic() - self._began_s

    async def _send(self, request: SimRequest, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await before
            request.due_s += max(0.0, self._now_s() - request.release_s)
            request.release_s = max(request.release_s, self._now_s())
        body = {
            "model": request.model,
            "prompt": _prompt(request.arrival),
            "max_tokens": request.arrival.output_tokens,
            "stream": True,
            "metadata": {"headgate_slo_class": request.slo_class},
        }
        headers = {"authorization": f"Bearer {self._keys[request.tenant]}"}
        try:
            async with self._session.post(self._url, json=body, headers=headers) as response:
                tail = b""
                async for part in response.content.iter_any():
                    tail = (tail + part)[-_TAIL_BYTES:]
                    if request.first_token_s < 0.0 and _TEXT.search(tail):
                        request.first_token_s = self._now_s()
        except (aiohttp.ClientError, TimeoutError) as error:
            request.rejected = type(error).__name__
            return
        if failed := _ERROR.search(tail):
            request.rejected = failed[1].decode()
        elif _END in tail:
            request.finish_s = self._now_s()
        else:
            request.rejected = "no_end"


_TAIL_BYTES = 4096
"""So much of an answer is kept. Nothing is parsed: thousands of tokens come in a second."""
_END = b"data: [DONE]"
_TEXT = re.compile(rb'"text": ?"[^"]')
_ERROR = re.compile(rb'\{"error":.*"code": ?"(\w+)"')
"""The body of a refusal, or the piece that ends a stream in which something failed."""


def _prompt(arrival: Arrival) -> str:
    """Return a text of just as many tokens of the modelled engine."""
    size = int(arrival.input_tokens * BYTES_PER_TOKEN)
    return ("water " * (size // 6 + 1))[:size]
