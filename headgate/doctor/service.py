"""Checks of a running service through its store and its HTTP face: table, log, leader, workers, clock and one request.

The store is DynamoDB's table, or the file of `headgate serve`. Reading the log changes nothing. The request is an
ordinary one: it is charged to the tenant of the key.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import openai

from dispatcher.model.errors import HeadgateError, StoreUnavailable, WrongClock
from dispatcher.model.tenants import Tenant
from dispatcher.monitor.follower import LogFollower, open_follower
from dispatcher.monitor.picture import WorkerPicture
from dispatcher.policies.share_bounds import SHARE_BOUNDS, share_problem
from dispatcher.ports import Clock, Store
from dispatcher.settings.config import Config
from headgate.doctor.finding import Finding, failed, ok, skipped, warning

LOG_AGE_MAX_S = 180.0
"""The sweep writes an entry at least each minute if anything waits or runs."""
REQUEST_S = 120.0
TOKENS = 8
SHARES_SHOWN = 10


async def check_pools(store: Store, config: Config, clock: Clock) -> tuple[list[Finding], list[LogFollower]]:
    """Return the findings about each pool, and the followers of the logs that could be read."""
    pools = config.each_pool()
    checked = [await check_store(store, each, clock) for each in pools]
    found = [
        finding if len(pools) == 1 else replace(finding, check=f"{finding.check} of {pool.pool}")
        for pool, (findings, _) in zip(pools, checked, strict=True)
        for finding in findings
    ]
    return found, [follower for _, follower in checked if follower is not None]


async def check_store(store: Store, config: Config, clock: Clock) -> tuple[list[Finding], LogFollower | None]:
    """Return the findings about table, log and workers of one pool, and the follower that has read the log."""
    place = f"table {config.table}" if config.store == "dynamodb" else config.store
    follower = open_follower(store, config, clock)
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
    more = f"; and {len(found) - SHARES_SHOWN} more" if len(found) > SHARES_SHOWN else ""
    advice = "the gate uses the nearest allowed value: headgate tenants set NAME --weight/--rate/--burst"
    return warning("shares", "; ".join(found[:SHARES_SHOWN]) + more, advice)


def check_request(base_url: str, key: str, model: str | None) -> Finding:
    """Send one streamed chat and return what came back."""
    client = openai.OpenAI(base_url=base_url, api_key=key, max_retries=0, timeout=REQUEST_S)
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
        model=model, messages=[{"role": "user", "content": "Say hello."}], max_tokens=TOKENS, stream=True,
        stream_options={"include_usage": True},
    )  # fmt: skip
    for chunk in stream:
        if chunk.choices:
            first_s, pieces = first_s or time.monotonic() - began, pieces + 1
        usage = chunk.usage or usage
    return first_s, pieces, usage


def no_request() -> Finding:
    return skipped("request", "give --base-url and --key to send one")
