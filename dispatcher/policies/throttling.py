"""Overload and interaction-driven throttling: who is refused when the KV cache is full, and nobody before or halfway.

Source: FairServe (arXiv 2411.15997), section 4.2 and Algorithm 1, lines 19 to 24. Units: seconds; limits in requests
let in within a trailing window. Of a request of user u and application a:

    not saturated                                       let in
    saturated, in the middle of an interaction          let in: to refuse it would waste all that was done before it
    saturated, u or a at its limit                      refused
    else                                                let in

Invariants: nothing is refused while there is room; no interaction that was begun is refused; while there is none, no
user and no application begins more than its limit within any window.

Deviations: the paper counts requests as they arrive, refused ones too, so a client that retries is never let in again;
here what was let in counts. It says "block"; here a refusal says which limit, and after how many seconds it has room.
Memory is bounded: of each user and application the last `limit` times, of at most KEPT_MAX of them; beyond, who was let
in longest ago begins anew.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

WINDOW_S = 60.0
KEPT_MAX = 100_000


@dataclass(frozen=True, slots=True)
class Limits:
    """Requests within a window: of a user over all applications, of an application over all users; those of `apps`
    instead of `app` where named. Raises ValueError for one below 1."""

    user: int
    app: int
    apps: Mapping[str, int] = field(default_factory=dict)
    window_s: float = WINDOW_S

    def __post_init__(self) -> None:
        if min(self.user, self.app, *self.apps.values()) < 1 or not self.window_s > 0:
            raise ValueError(f"limits are at least 1 request in a window longer than 0 s, not {self!r}")

    def of_app(self, app: str) -> int:
        return self.apps.get(app, self.app)


@dataclass(frozen=True, slots=True)
class Throttled:
    """`limit`: of those that are full, the one that has room last; `retry_after_s`: when, if nothing else is let in by
    then. Above 0, at most the window."""

    limit: Literal["user", "app"]
    most: int
    retry_after_s: float


class Throttle:
    """Told of requests in the order of their arrival; pure: the time and the saturation are told."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._users: OrderedDict[str, deque[float]] = OrderedDict()
        self._apps: OrderedDict[str, deque[float]] = OrderedDict()

    def decide(self, user: str, app: str, now_s: float, *, saturated: bool, under_way: bool) -> Throttled | None:
        """None: let in. `under_way`: an earlier call of its interaction was let in. `now_s` never falls."""
        if saturated and not under_way:
            of_user = self._full("user", self._users.get(user), self._limits.user, now_s)
            of_app = self._full("app", self._apps.get(app), self._limits.of_app(app), now_s)
            if full := [one for one in (of_user, of_app) if one is not None]:
                return max(full, key=lambda one: one.retry_after_s)
        _let_in(self._users, user, self._limits.user, now_s)
        _let_in(self._apps, app, self._limits.of_app(app), now_s)
        return None

    def _full(
        self, limit: Literal["user", "app"], times: deque[float] | None, most: int, now_s: float
    ) -> Throttled | None:
        """By the age, not by when the window ends: rounded, that may be more than a window away."""
        if times is None or len(times) < most:
            return None
        age_s = now_s - times[0]
        return Throttled(limit, most, self._limits.window_s - age_s) if age_s < self._limits.window_s else None


def _let_in(kept: OrderedDict[str, deque[float]], name: str, most: int, now_s: float) -> None:
    """The last `most` times say all: the first of them tells when there is room."""
    times = kept.get(name)
    if times is None:
        times = kept[name] = deque(maxlen=most)
        if len(kept) > KEPT_MAX:
            kept.popitem(last=False)
    times.append(now_s)
    kept.move_to_end(name)
