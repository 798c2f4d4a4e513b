"""What the operator's page shows of a pool, read from its log and its usage, and a front's access to it.

Nothing is written. All pages of a process share one copy of the shard, which is made when the first page is asked for.
However often pages are asked for, the log is read at most once in FRESH_S, and the stored usage at most once in
USAGE_FRESH_S. A read goes on when a page does not wait for it any longer, so a long log is read once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from dispatcher.model.errors import ConfigurationError, LogError, StoreUnavailable
from dispatcher.model.tenants import Tenant
from dispatcher.monitor.follower import (
    LogFollower,
    TenantHours,
    last_hours,
    open_followers,
    pool_usage_rows,
    tenants_by_hour,
    total_of,
)
from dispatcher.monitor.picture import Picture, TenantPicture
from dispatcher.operations.context import Context
from dispatcher.ports import Clock, UsageStore
from dispatcher.settings.config import Config, load_config

FRESH_S = 2.0
USAGE_FRESH_S = 60.0
PATIENCE_S = 5.0
"""A page waits so long for a read, then it shows what was read before."""
_TOKEN_CHARS_MIN = 32
"""A random token of this length cannot be guessed, so wrong ones need no limit."""
TENANTS_MAX = 50
"""A page shows so many tenants: the busiest ones."""

_TenantNamed = Callable[[str], Awaitable[Tenant | None]]


@dataclass(frozen=True, slots=True)
class ConsoleProblem:
    """`what` failed, and what an operator can `do`; both are sentences."""

    what: str
    do: str


@dataclass(frozen=True, slots=True)
class TenantLine:
    """A tenant of the page. `active`: None if the log has forgotten it, because it is idle. `rate_per_s`: its
    guarantee in service units a second, None if it cannot be read; `tier` is empty then."""

    name: str
    tier: str
    rate_per_s: float | None
    active: TenantPicture | None
    hours: TenantHours


@dataclass(frozen=True, slots=True)
class ConsolePicture:
    """The gate of a pool, and what the page shows of its tenants: the busiest of `matching` tenants that match, of
    `known` with a call now or in the shown hours.

    `total`: the usage of all tenants. `problems`: why a part is missing or old.
    """

    pool: str
    gate: Picture
    tenants: Sequence[TenantLine]
    matching: int
    known: int
    total: TenantHours
    problems: Sequence[ConsoleProblem]


class Console:
    """`tenant_named`: reads a tenant's configuration, for tenants that the log has forgotten."""

    def __init__(self, follower: LogFollower, usage: UsageStore, tenant_named: _TenantNamed, clock: Clock) -> None:
        self._follower, self._store = follower, usage
        self._tenant_named, self._clock = tenant_named, clock
        self._read_at = self._usage_at = -inf
        self._hours: dict[str, TenantHours] = {}
        self._reading: asyncio.Task[None] | None = None

    async def look(self, find: str = "") -> ConsolePicture:
        """Return the picture. `find`: only tenants with this text in their names. It raises no error of the store or
        the log: what cannot be read is one of the picture's problems."""
        problems = await self._refresh()
        gate = self._follower.picture(self._clock.now())
        active = {each.row.tenant: each for each in gate.tenants}
        known = sorted({*active, *self._hours})
        matching = [name for name in known if find in name]
        matching.sort(key=lambda name: self._busyness(name, active.get(name)), reverse=True)
        try:
            names = matching[:TENANTS_MAX]
            lines = await asyncio.gather(*(self._line(name, active.get(name)) for name in names))
        except StoreUnavailable as error:
            problems.append(ConsoleProblem(f"The configuration of idle tenants cannot be read: {error}", _CHECK_TABLE))
            lines = [_line(name, active.get(name), None, self._hours.get(name)) for name in names]
        total = total_of(self._hours.values())
        return ConsolePicture(self._follower.shard, gate, lines, len(matching), len(known), total, problems)

    async def _refresh(self) -> list[ConsoleProblem]:
        """Read what is old. Return what is wrong with the last read, or that it has not ended."""
        if self._reading is None and self._clock.monotonic() - self._read_at >= FRESH_S:
            self._reading = asyncio.ensure_future(self._read())
            self._reading.add_done_callback(self._forget_reading)
        if self._reading is None:
            return []
        try:
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.shield(self._reading)
        except TimeoutError:
            what = f"The log is still being read, and the page shows position {self._follower.position}."
            return [ConsoleProblem(what, "Load the page again in a few seconds.")]
        except StoreUnavailable as error:
            return [ConsoleProblem(f"The log or the usage cannot be read: {error}", _CHECK_TABLE)]
        except LogError as error:
            return [ConsoleProblem(f"The log cannot be used: {error}", _CHECK_LOG)]
        return []

    async def _read(self) -> None:
        await self._follower.catch_up()
        began = self._clock.monotonic()
        if began - self._usage_at >= USAGE_FRESH_S:
            first, last = last_hours(self._clock.now())
            rows = await pool_usage_rows(self._store, self._follower, first, last)
            self._hours, self._usage_at = tenants_by_hour(rows, self._clock.now()), began
        self._read_at = began

    def _forget_reading(self, reading: asyncio.Task[None]) -> None:
        self._reading = None
        if not reading.cancelled():
            reading.exception()  # each waiting page has it

    def _busyness(self, name: str, active: TenantPicture | None) -> tuple[float, float, float]:
        hours = self._hours[name].service if name in self._hours else 0.0
        if active is None:
            return 0.0, 0.0, hours
        return float(active.row.waiting + active.row.running), active.recent.service_per_s, hours

    async def _line(self, name: str, active: TenantPicture | None) -> TenantLine:
        config = await self._tenant_named(name) if active is None else None
        return _line(name, active, config, self._hours.get(name))


_CHECK_TABLE = "Check the front's network and its rights to the table; `headgate doctor after` names what fails."
_CHECK_LOG = "If `headgate top` fails too, restore the table, or the data folder, to a time before the damage."


def _line(name: str, active: TenantPicture | None, config: Tenant | None, hours: TenantHours | None) -> TenantLine:
    """Return the line of a tenant: from the log, or, if the log has forgotten it, from its configuration."""
    tier = active.row.tier if active else config.tier.value if config else ""
    rate = active.row.rate_per_s if active else config.share.rate_per_s if config else None
    return TenantLine(name, tier, rate, active, hours or TenantHours(name))


@dataclass(frozen=True, slots=True)
class OperatorAccess:
    """`token` opens the operator's page, and the console of each pool reads what it shows of the pool."""

    token: bytes
    consoles: Mapping[str, Console]
    """The consoles by the name of the pool or shard, in the order of the configuration."""


def make_operator(context: Context, config: Config | None = None) -> OperatorAccess | None:
    """Return the access to the operator's page of a front; None without a token. `config` None: read it from the
    environment. Raises ConfigurationError."""
    config = config or load_config()
    token = _token(config)
    if not token:
        return None
    if len(token) < _TOKEN_CHARS_MIN:
        raise ConfigurationError(
            f"HEADGATE_OPERATOR_TOKEN must have at least {_TOKEN_CHARS_MIN} characters; "
            "`openssl rand -hex 24` makes one"
        )
    tenant_named = context.directory.tenant_of_identity
    consoles = {
        follower.shard: Console(follower, context.store, tenant_named, context.clock)
        for each in config.each_pool()
        for follower in open_followers(context.store, each, context.clock)
    }
    return OperatorAccess(token.encode(), consoles)


def _token(config: Config) -> str:
    """Return the token; empty if the configuration has none."""
    if config.operator_token or not config.operator_token_arn:
        return config.operator_token
    import boto3

    secrets = boto3.client("secretsmanager")
    return str(secrets.get_secret_value(SecretId=config.operator_token_arn)["SecretString"])
