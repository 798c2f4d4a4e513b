"""The two services that the demo can measure: the AWS form with its stand-ins, or the form on one machine.

Both give the demo the same `Service`. The form on one machine starts faster and needs fewer packages. It has no
lambda.invoke.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from dispatcher.model.errors import StoreUnavailable
from dispatcher.model.tenants import TenantStore
from dispatcher.monitor.follower import LogFollower, open_follower
from dispatcher.monitor.picture import Picture
from dispatcher.policies.clocks import Share
from dispatcher.processes.bootstrap import RealClock, make_store
from dispatcher.settings.config import load_config
from headgate.local.seed import make_tenants
from headgate.machine.options import FleetOptions, StackOptions
from headgate.serve.folder import ORDER, DataFolder
from headgate.serve.server import ServeOptions, Server

CALIBRATION = "calibration"
"""The tenant of the requests that measure the engine."""
_QUEUE_ITEMS_MAX = 1000

_Step = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Service:
    """A service that runs. `aws_url` is None without lambda.invoke. `keys` has the key of CALIBRATION."""

    base_url: str
    aws_url: str | None
    keys: Mapping[str, str]
    model: str
    bytes_per_token: float
    picture: Callable[[], Awaitable[Picture | None]]
    """Returns what the log says of tenants and workers; None while the store does not answer."""
    add_tenants: Callable[[Mapping[str, Share]], Awaitable[dict[str, str]]]
    """Creates tenants and returns their keys."""


@asynccontextmanager
async def running(options: FleetOptions, on_step: _Step) -> AsyncIterator[Service]:
    """Run the service that fits the options; stop it in any case."""
    if isinstance(options, StackOptions):
        async with _aws_form(options, on_step) as service:
            yield service
    else:
        async with _one_machine(ServeOptions.model_validate(options.model_dump()), on_step) as service:
            yield service


@asynccontextmanager
async def _aws_form(options: StackOptions, on_step: _Step) -> AsyncIterator[Service]:
    from headgate.local.stack import Stack  # the form on one machine runs without the extra `local`

    stack = Stack(options.model_copy(update={"tenants": {CALIBRATION: Share()}}))
    try:
        addresses = await stack.start(on_step)
        yield Service(
            base_url=addresses.openai_base_url,
            aws_url=addresses.aws_endpoint_url,
            keys=addresses.api_keys,
            model=stack.model,
            bytes_per_token=stack.bytes_per_token,
            picture=stack.picture,
            add_tenants=stack.add_tenants,
        )
    finally:
        await stack.stop()


@asynccontextmanager
async def _one_machine(options: ServeOptions, on_step: _Step) -> AsyncIterator[Service]:
    server = Server(options, report=on_step)
    try:
        addresses = await server.start(on_step)
        config = load_config({"HEADGATE_STORE": DataFolder(options.home).store, ORDER: options.order})
        store = make_store(config)
        try:
            follower = open_follower(store, config, RealClock())
            await follower.catch_up()
            yield Service(
                base_url=addresses.openai_base_url,
                aws_url=None,
                keys=await _create_tenants(store, {CALIBRATION: Share()}),
                model=addresses.model,
                bytes_per_token=follower.workers()[0].bytes_per_token,
                picture=lambda: _picture(follower),
                add_tenants=lambda shares: _create_tenants(store, shares),
            )
        finally:
            await store.close()
    finally:
        await server.stop()


async def _create_tenants(store: TenantStore, shares: Mapping[str, Share]) -> dict[str, str]:
    return await make_tenants(store, shares, _QUEUE_ITEMS_MAX)


async def _picture(follower: LogFollower) -> Picture | None:
    try:
        await follower.catch_up()
    except StoreUnavailable:
        return None
    return follower.picture(RealClock().now())
