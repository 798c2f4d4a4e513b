"""What goes wrong in a run, and how often: drawn anew for each seed, because fixed rates find fewer bugs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

OFTEN = 0.5
"""Each kind of fault plays a part in so many seeds."""
OVERLOAD = 0.1
"""In so many seeds one slot is there for many calls."""
STEADY = 0.6
"""In so many seeds with isolations nothing else fails, so that a gate process leads for longer than a lease."""
SWAPPING = 0.2
"""In so many seeds workers can load several models."""
PLANNED = 0.5
"""In so many of these the leader plans."""
RETIRING = 0.2
"""In so many seeds workers retire."""
ERRORS = 0.35
"""In so many seeds errors are thrown in production code: in half of them at the calls of one tenant, in the others
anywhere, in a few both."""
SMALL = 0.3
"""In so many seeds bounds of production are small (scale.py)."""
CROWDED = 0.12
"""In so many seeds all tenants have long queues, so that waits are announced and calls are out of reach."""
THROTTLED = 0.12
"""In so many seeds the gate throttles."""
SHARED = 0.08
"""In so many seeds most keys are repeated at other fronts, while their calls run."""
RUSHED = 0.06
"""In so many seeds many calls come at the same moments, the leader dies often, and soon refuses what it has to do."""
APART = 0.06
"""In so many seeds processes are cut off from each other and not from the store, and the leader's clock jumps."""
OTHER_ORDER = 0.12
"""In so many seeds the shard has another order than the default."""
TIERED = 0.08
"""In so many seeds with the default order it knows tiers, and in as many due times."""
SHARDED_FROM = 1_000_000
"""The pools of these seeds have several shards. So the seeds below it mean what they always did."""
ORDERS = ("fcfs", "ratio", "ratio+wake", "virtual-clock", "virtual-clock+cap", "sfq")
MILD = 0.25
"""In so many seeds only processes die: store, network and clocks work, so the bounds of liveness hold all the time."""


@dataclass(frozen=True, slots=True)
class Weather:
    """Rates of faults are per second of the whole world, chances per request of the store; times are in seconds."""

    seed: int
    fronts: int
    gates: int
    workers: int
    slots: int
    """Of each worker."""
    calls: int
    trouble_s: float
    mild: bool
    durable: float
    """Part of the calls with an idempotency key."""
    leaderless: bool
    """No gate process runs before the calm: each process decides alone."""
    hedged: bool
    """Slow requests to the log are repeated (rule 16)."""
    executors: bool
    """Whether the fronts execute launched calls for the leader, or get messages from a queue."""
    token_s: float
    latency_s: float
    store_fails: float = 0.0
    """Chance that a request fails, before or after it was applied."""
    store_pause: float = 0.0
    """Chance of a pause before or after a request is applied."""
    store_gone: float = 0.0
    """Rate of times in which the store answers no process, or only some requests (throttling)."""
    crash: float = 0.0
    """Chance that a process dies at a request, before or after it was applied."""
    kills: float = 0.0
    pauses: float = 0.0
    cuts: float = 0.0
    isolations: float = 0.0
    """Rate of pauses and partitions of one process that last longer than a lease."""
    jumps: float = 0.0
    skew_s: float = 0.0
    """Most by which a clock is wrong."""
    tears: float = 0.0
    expiry: bool = False
    tenant_changes: float = 0.0
    callers_leave: float = 0.0
    engine_fails: float = 0.0
    duplicates: float = 0.0
    """Chance that a worker gets an order twice."""
    lost: float = 0.15
    """Chance that a killed process never comes back."""
    suspends: bool = False
    """A pause stops the monotonic clock too, as when a virtual machine is suspended."""
    set_back_s: float = 0.0
    """Most by which the wall clock of a worker is set back while it is isolated."""
    models: int = 1
    planned: bool = False
    """The workers report a throughput from the start, so that the leader plans."""
    """What each worker can load. With more than one, calls are for any of them, and workers swap."""
    shards: int = 1
    """Of the pool. Only seeds from SHARDED_FROM on have several."""
    shard_losses: float = 0.0
    """Rate of times in which the log of one shard answers no process."""
    retires: float = 0.0
    """Rate of commands that a worker retires, or serves again."""
    at_fault: str = ""
    """The tenant whose calls raise errors in the gate (thrown_errors.py)."""
    throws: float = 0.0
    """Chance of an error at each of some points of production code, whatever it works on, until each was thrown a few
    times."""
    small: bool = False
    """Bounds of production are small."""
    crowded: bool = False
    """Many calls of all tenants come at once, for few slots."""
    throttled: bool = False
    """The gate has limits for tenants and applications, and the workers' caches are full while they work."""
    order: str = "bwfq"
    tiered: bool = False
    """The shard knows tiers, and each tenant has another one."""
    due_times: bool = False
    """Calls have SLO classes, and the order knows when they are due."""
    shared: bool = False
    """Keys are repeated at other fronts while their calls run, and attempts are lost."""
    rushed: bool = False
    """Calls come together, and a leader with a few commands is behind."""
    apart: bool = False
    """Parts of the fleet work without each other, and the leader reads the log seldom."""
    looks: bool = False
    """Operators ask for usage, load and delays."""
    stops: float = 0.0
    """Rate of orderly stops of gate processes."""
    freezes: float = 0.0
    """Chance that a process stops in the middle of an append, for longer than an entry lives."""


def draw(seed: int, fronts: int | None = None) -> Weather:
    """Return the weather of a seed. `fronts`: instead of the number that the seed draws."""
    random = Random(f"weather {seed}")
    mild = random.random() < MILD

    def chance(most: float) -> float:
        return random.random() ** 2 * most if random.random() < OFTEN else 0.0

    isolations = 0.0 if mild or random.random() < 0.8 else 0.05 + random.random() ** 2 * 0.25

    def storm(most: float) -> float:
        value = chance(most)
        return 0.0 if mild else value

    drawn = random.choice([1, 2, 2, 3])
    leaderless = random.random() < 0.15
    overload = random.random() < OVERLOAD
    weather = Weather(
        seed=seed,
        fronts=fronts or drawn,
        gates=random.choice([1, 2, 2, 3]),
        workers=1 if overload else random.choice([1, 1, 2, 3]),
        slots=1 if overload else random.choice([1, 2, 2, 3]),
        calls=random.randrange(6, 16) * (2 if overload or (fronts or drawn) >= 8 else 1),
        trouble_s=30.0 if isolations else random.choice([4.0, 8.0, 8.0, 16.0]),
        mild=mild,
        durable=random.choice([0.0, 0.3, 0.7]),
        leaderless=leaderless,
        hedged=random.random() < 0.5,
        executors=random.random() < 0.5,
        token_s=0.4 if overload or isolations else random.choice([0.02, 0.1, 0.4]),
        latency_s=random.choice([0.0005, 0.005, 0.03]),
        store_fails=storm(0.3),
        store_pause=storm(0.5),
        store_gone=storm(0.3),
        crash=storm(0.02),
        kills=0.0 if mild and leaderless else (0.1 if mild else 0.0) + chance(0.6),
        pauses=storm(0.5),
        cuts=storm(0.6),
        isolations=isolations,
        jumps=storm(0.3),
        skew_s=storm(3.0),
        tears=storm(0.5),
        expiry=random.random() < 0.3 and not mild,
        tenant_changes=chance(0.5),
        callers_leave=chance(0.6),
        engine_fails=chance(0.3),
        duplicates=chance(0.3),
    )
    weather = weather if mild else _long_silences(weather, random)
    return _with_shards(_with_rules(_with_errors(_with_retirements(_with_models(weather)))))


def _with_shards(weather: Weather) -> Weather:
    """Return the weather, from SHARDED_FROM on with several shards. Other random numbers stay as they are."""
    if weather.seed < SHARDED_FROM:
        return weather
    random = Random(f"shards {weather.seed}")
    weather = replace(weather, shards=random.choice([2, 2, 3]), models=1, planned=False)
    if weather.mild and not weather.leaderless:
        losses = random.choice([0.0, 0.15, 0.15])
        weather = replace(weather, shard_losses=losses, trouble_s=30.0, kills=random.choice([0.0, weather.kills]))
    return weather


def _with_rules(weather: Weather) -> Weather:
    """Return the weather, in some seeds so that rare rules are reached. Other random numbers stay as they are."""
    random = Random(f"rules {weather.seed}")
    weather = replace(
        weather,
        small=random.random() < SMALL,
        crowded=random.random() < CROWDED,
        throttled=random.random() < THROTTLED,
    )
    weather = replace(weather, looks=random.random() < 0.1, stops=0.15 if random.random() < 0.1 else 0.0)
    if random.random() < OTHER_ORDER:
        weather = replace(weather, order=random.choice(ORDERS))
    elif random.random() < 2 * TIERED:
        tiered = random.random() < 0.6
        weather = replace(weather, tiered=tiered, due_times=not tiered or random.random() < 0.3)
    kind = random.random()
    if kind < SHARED:
        return _shared(weather)
    if kind < SHARED + APART:
        return _apart(weather)
    if kind < SHARED + APART + RUSHED:
        return _rushed(weather)
    if weather.crowded and not weather.isolations:
        weather = replace(weather, calls=40, workers=1, slots=2, token_s=0.1, trouble_s=8.0)
    return weather


def _shared(weather: Weather) -> Weather:
    """Return a weather in which streams are followed by several fronts, and lose their attempts."""
    return replace(
        weather, shared=True, mild=False, crowded=False, isolations=0.0, fronts=max(2, weather.fronts),
        workers=max(2, weather.workers), gates=max(2, weather.gates), leaderless=False, slots=2, durable=0.9,
        token_s=0.2, trouble_s=30.0, kills=0.5, cuts=0.1, callers_leave=0.1, lost=0.0,
    )  # fmt: skip


def _rushed(weather: Weather) -> Weather:
    """Return a weather in which the copies of one command meet leaders of which some are behind."""
    return replace(
        weather, rushed=True, mild=False, crowded=False, isolations=0.0, leaderless=False, gates=max(2, weather.gates),
        durable=0.0, slots=2, token_s=0.1, trouble_s=16.0, calls=40, kills=0.0, cuts=0.0, crash=0.05, lost=0.0,
        store_gone=0.0,
    )  # fmt: skip


def _apart(weather: Weather) -> Weather:
    """Return a weather in which processes write the log beside a leader that does not hear of it at once."""
    return replace(
        weather, apart=True, mild=False, crowded=False, isolations=0.0, leaderless=False, gates=max(2, weather.gates),
        fronts=max(2, weather.fronts), workers=max(2, weather.workers), slots=1, token_s=0.1, trouble_s=16.0, kills=0.0,
        cuts=0.8, jumps=2.0, skew_s=3.0, store_fails=0.0, store_pause=0.0, store_gone=0.0, crash=0.0,
    )  # fmt: skip


def _with_errors(weather: Weather) -> Weather:
    """Return the weather, in some seeds with errors in the code. Other random numbers stay as they are."""
    random = Random(f"errors {weather.seed}")
    if random.random() >= ERRORS:
        return weather
    kind = random.random()
    throws = random.choice([0.02, 0.2, 1.0]) if kind >= 0.5 else 0.0
    at_fault = random.choice(["a", "b", "owed"]) if kind < 0.6 else ""
    return replace(weather, at_fault=at_fault, throws=throws, mild=weather.mild and not throws)


def _with_retirements(weather: Weather) -> Weather:
    """Return the weather, in some seeds with workers that retire. Other random numbers stay as they are."""
    random = Random(f"retires {weather.seed}")
    return replace(weather, retires=0.1 + 0.5 * random.random()) if random.random() < RETIRING else weather


def _with_models(weather: Weather) -> Weather:
    """Return the weather, in some seeds with workers of several models. Other random numbers stay as they are."""
    random = Random(f"models {weather.seed}")
    if random.random() >= SWAPPING:
        return weather
    return replace(weather, models=random.choice([2, 3]), planned=random.random() < PLANNED)


def _long_silences(weather: Weather, random: Random) -> Weather:
    """Return the weather with what only shows in runs that are longer than a lease."""
    weather = replace(
        weather,
        lost=random.choice([0.15, 0.15, 0.5]),
        suspends=random.random() < (0.5 if weather.isolations else 0.2),
        set_back_s=random.choice([0.0, 20.0, 20.0]),
        freezes=random.choice([0.0, 0.0, 0.05]) if weather.expiry else 0.0,
    )
    if weather.isolations:
        weather = replace(weather, token_s=random.choice([0.4, 1.0, 1.0]), durable=random.choice([0.3, 0.7]))
        if random.random() < STEADY:
            weather = _steady(weather)
    if weather.freezes:
        weather = replace(weather, trouble_s=30.0, calls=max(24, weather.calls))
        if random.random() < STEADY:
            weather = replace(_steady(weather), isolations=0.0)
    return weather


def _steady(weather: Weather) -> Weather:
    """Return a weather in which single processes are isolated, and the others work."""
    return replace(
        weather, isolations=0.02, leaderless=False, workers=max(2, weather.workers), kills=0.0, crash=0.0, cuts=0.0,
        pauses=0.0, store_fails=0.0, store_pause=0.0, store_gone=0.0, jumps=0.0, engine_fails=0.0,
    )  # fmt: skip
