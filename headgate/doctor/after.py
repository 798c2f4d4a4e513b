"""Checks of a running service through its store and its HTTP face, and a smoke test of its fairness.

The checks are of table, log, leader, workers, clock and one request. The store is DynamoDB's table, or the file of
`headgate serve`. Reading the log changes nothing. The request is an ordinary one: it is charged to the tenant of the
key.

In the smoke test one tenant floods, and another one must not wait behind the flood. Two tenants are created for it,
with equal weights and no guarantee, and deleted afterwards. The verdict counts requests, and does not depend on how
fast the service is: of the requests of the flood that waited when a request of the quiet tenant came, at most a half
may get their first token before it. Under first come, first served all of them do.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import openai

from dispatcher.model.errors import HeadgateError, StoreUnavailable, WrongClock
from dispatcher.model.tenants import Tenant
from dispatcher.monitor.follower import LogFollower, open_follower
from dispatcher.monitor.picture import WorkerPicture
from dispatcher.operations.administration import TenantAdmin
from dispatcher.policies.share_bounds import SHARE_BOUNDS, share_problem
from dispatcher.ports import Clock, Ids, Store
from dispatcher.settings.config import Config
from headgate.demo.measure import Sample
from headgate.demo.player import Player
from headgate.doctor.finding import Finding, failed, ok, skipped, warning
from headgate.workloads.arrivals import Arrival

_REQUEST_S = 120.0
_TOKENS = 8
_SHARES_SHOWN = 10


async def check_pools(store: Store, config: Config, clock: Clock) -> tuple[list[Finding], list[LogFollower]]:
    """Return the findings about each shard of each pool, and the followers of the logs that could be read."""
    shards = [(each, shard) for each in config.each_pool() for shard in each.shard_names]
    checked = [await _check_store(store, each, shard, clock) for each, shard in shards]
    found = [
        finding if len(shards) == 1 else replace(finding, check=f"{finding.check} of {shard}")
        for (_, shard), (findings, _) in zip(shards, checked, strict=True)
        for finding in findings
    ]
    return found, [follower for _, follower in checked if follower is not None]


async def _check_store(
    store: Store, config: Config, shard: str, clock: Clock
) -> tuple[list[Finding], LogFollower | None]:
    """Return the findings about table, log and workers of one shard, and the follower that has read the log."""
    place = f"table {config.table}" if config.store == "dynamodb" else config.store
    follower = open_follower(store, config, clock, shard)
    try:
        await follower.catch_up()
    except WrongClock as error:
        return [failed("clock", str(error), "set this machine's clock")], None
    except StoreUnavailable as error:
        return [failed("table", f"{place}: {error}", "check HEADGATE_TABLE, region, credentials and permissions")], None
    except HeadgateError as error:
        return [failed("log", f"{place}: {error}", "see docs/gate.md: no process can decide on this log")], None
    picture = follower.picture(clock.now())
    found = [ok("table", f"{place} answers"), _log(picture.position, picture.at, picture.leader, clock.now())]
    return [*found, *_workers(picture.workers)], follower


def _log(position: int, at: float, leader: str, now: float) -> Finding:
    if not position:
        return warning("log", "no entry has been written", "start a worker, and send a request")
    ahead_s, who = at - now, f"led from {leader}" if leader else "no process leads: each decides alone, which is slower"
    if ahead_s > 2.0:
        advice = "set the clock of this machine, or of the process that wrote the entry"
        return failed("log", f"its last entry is {ahead_s:.1f} s in the future", advice)
    return ok("log", f"{position:,} entries, the last {max(0.0, -ahead_s):,.0f} s ago; {who}")


def _workers(workers: Sequence[WorkerPicture]) -> list[Finding]:
    """Return one finding of all workers together, and one for each that is silent."""
    serving = [worker for worker in workers if worker.state != "silent"]
    if not serving:
        advice = "look at the workers' logs: a worker joins when its model is loaded"
        return [failed("workers", "no worker reports", advice)]
    models = ", ".join(sorted({worker.model for worker in serving}))
    silent = [worker.worker for worker in workers if worker.state == "silent"]
    return [
        ok("workers", f"{len(serving)} with {sum(worker.slots for worker in serving)} slots; {models}"),
        *(warning("workers", f"{name} is silent", "it died, or it cannot reach the gate") for name in silent),
    ]


async def check_shares(list_tenants: Callable[[], Awaitable[Sequence[Tenant]]]) -> Finding:
    """Name the tenants with stored shares outside the bounds (policies/share_bounds.py): the gate clamps them."""
    try:
        tenants = await list_tenants()
    except HeadgateError as error:
        return skipped("shares", f"only administrators may read the tenants' settings ({error})")
    found = [
        f"{tenant.name}: {setting} {problem}"
        for tenant in tenants
        for setting in SHARE_BOUNDS
        if (problem := share_problem(setting, getattr(tenant.share, setting))) is not None
    ]
    if not found:
        return ok("shares", f"{len(tenants)} tenants, all within the bounds")
    more = f"; and {len(found) - _SHARES_SHOWN} more" if len(found) > _SHARES_SHOWN else ""
    advice = "the gate uses the nearest allowed value: headgate tenants set NAME --weight/--rate/--burst"
    return warning("shares", "; ".join(found[:_SHARES_SHOWN]) + more, advice)


def check_request(base_url: str, key: str, model: str | None) -> Finding:
    """Send one streamed chat and return what came back."""
    client = openai.OpenAI(base_url=base_url, api_key=key, max_retries=0, timeout=_REQUEST_S)
    try:
        name = model or client.models.list().data[0].id
        began = time.monotonic()
        first_s, pieces, usage = _stream_answer(client, name, began)
    except IndexError:
        return failed("request", "the tenant may use no model", "headgate tenants set NAME --model MODEL")
    except openai.AuthenticationError:
        return failed("request", "the key is refused", "give a valid key: headgate tenants rotate-key NAME")
    except openai.APIConnectionError as error:
        return failed("request", f"{base_url} cannot be reached: {error.__cause__ or error}", "check the address")
    except openai.APIError as error:
        return failed("request", f"{error.code or type(error).__name__}: {error.message}"[:300], "see the front's log")
    if usage is None:
        return failed("request", f"the stream ended without usage after {pieces} pieces", "see the front's log")
    took = f"first token after {first_s:.2f} s, {usage.completion_tokens} tokens in {time.monotonic() - began:.2f} s"
    return ok("request", f"{name}: {took}")


def _stream_answer(client: openai.OpenAI, model: str, began: float) -> tuple[float, int, Any]:
    """Return the seconds to the first piece, the number of pieces and the usage."""
    first_s, pieces, usage = 0.0, 0, None
    stream = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "Say hello."}], max_tokens=_TOKENS, stream=True,
        stream_options={"include_usage": True},
    )  # fmt: skip
    for chunk in stream:
        if chunk.choices:
            first_s, pieces = first_s or time.monotonic() - began, pieces + 1
        usage = chunk.usage or usage
    return first_s, pieces, usage


def no_request() -> Finding:
    return skipped("request", "give --base-url and --key to send one")


_CHECK = "fairness"
_QUIET_REQUESTS = 3
_INPUT_TOKENS, _OUTPUT_TOKENS = 32, 64
_QUIET_AT_S = 0.6
_FLOOD_MAX = 600
AHEAD_MAX = 0.5
_BYTES_PER_TOKEN = 4.0


@dataclass(frozen=True, slots=True)
class TestedService:
    """Where the test sends its requests. `slots`: of all workers of the model. `window`: HEADGATE_SLO_WINDOW."""

    base_url: str
    model: str
    slots: int
    window: float = 5_000.0


async def check_fairness(admin: TenantAdmin, ids: Ids, service: TestedService) -> Finding:
    """Create two tenants, play the flood and the quiet requests, delete the tenants, and return the verdict."""
    suffix = "".join(letter for letter in ids.new().lower() if letter.isalnum())[:8]
    names = {role: f"doctor-{role}-{suffix}" for role in ("flood", "quiet")}
    keys: dict[str, str] = {}
    try:
        for name in names.values():
            keys[name] = await admin.create(Tenant(name))
        player = Player(service.base_url, None, keys, service.model, _BYTES_PER_TOKEN, {})
        samples = await player.play(_arrivals(names["flood"], names["quiet"], _flood_size(service)))
    finally:
        for name in keys:
            await admin.delete(name)
    return verdict(samples, names["flood"], names["quiet"])


def _flood_size(service: TestedService) -> int:
    """Return the requests of the flood: four for each slot, and four windows of service. With SLO classes, requests of
    one window may go before a later one that is due later: this must be a small part of the flood."""
    windows = math.ceil(4 * service.window / (_INPUT_TOKENS + 2 * _OUTPUT_TOKENS))
    return min(_FLOOD_MAX, max(16, 4 * service.slots, windows))


def _arrivals(flood: str, quiet: str, sent: int) -> list[Arrival]:
    """Return a flood of `sent` requests, and the quiet requests right behind it."""
    behind = [Arrival(_QUIET_AT_S, quiet, _INPUT_TOKENS, _OUTPUT_TOKENS) for _ in range(_QUIET_REQUESTS)]
    return [*(Arrival(0.0, flood, _INPUT_TOKENS, _OUTPUT_TOKENS) for _ in range(sent)), *behind]


def verdict(samples: Sequence[Sample], flood: str, quiet: str) -> Finding:
    """Return whether the quiet tenant's requests passed the flood's waiting ones."""
    lost = [sample for sample in samples if sample.tenant == quiet and sample.error]
    if lost:
        return failed(_CHECK, f"a request of the quiet tenant failed: {lost[0].error}", "see the front's log")
    parts = [_ahead(samples, sample, flood) for sample in samples if sample.tenant == quiet]
    waited = [part for part in parts if part is not None]
    if not waited:
        advice = "nothing is wrong; to see the sharing, repeat it while the service is busy"
        return warning(_CHECK, "the flood did not fill the workers: no request had to wait", advice)
    seen = f"of the flood's waiting requests, {max(waited):.0%} were served before a quiet one that came later"
    if max(waited) > AHEAD_MAX:
        return failed(_CHECK, seen, "check HEADGATE_ORDER: fcfs does not share")
    return ok(_CHECK, seen)


def _ahead(samples: Sequence[Sample], sample: Sample, flood: str) -> float | None:
    """Return the part of the flood that waited when the sample came and began before it. None: none waited."""
    firsts = [_first_s(each) for each in samples if each.tenant == flood and not each.error]
    waiting = [first for first in firsts if first > sample.arrival_s]
    mine = _first_s(sample)
    return sum(first < mine for first in waiting) / len(waiting) if waiting else None


def _first_s(sample: Sample) -> float:
    return math.inf if sample.first_token_s is None else sample.first_token_s
