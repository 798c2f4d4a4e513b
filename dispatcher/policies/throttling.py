"""Overload and interaction-driven throttling (OIT): which requests are refused while the KV cache is full.

Source: FairServe (arXiv 2411.15997), section 4.2 and Algorithm 1, lines 19 to 24. Units: seconds; a limit counts the
requests admitted within a trailing window. The paper's user is the gate's tenant. The first line that applies decides
about a request of user u and application a:

    the cache is not full (not saturated)               admitted
    it belongs to an interaction that has begun         admitted: a refusal would waste the interaction's earlier calls
    u or a is at its limit                              refused
    otherwise                                           admitted

Invariants: no request is refused while the cache has space. No later call of an admitted interaction is refused. While
the cache is full, no user and no application begins more interactions than its limit within any window.

Deviations: the paper counts each arrival, also the refused ones, so a client that retries is never admitted again. Here
only admitted requests count. The paper says "block". Here a refusal names the limit and the seconds until a new request
would be within it. Memory is bounded: each user and application keeps its last `limit` admission times. `trim` keeps
only the KEPT_MAX users and KEPT_MAX applications that were admitted most recently. The others start with an empty
window. `trim` depends on these times alone, so `restore` undoes a `note` exactly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from heapq import nsmallest
from typing import Annotated, Literal

from dispatcher.policies.bounds import BoundedSettings, Bounds

WINDOW_S = 60.0
KEPT_MAX = 100_000
_Most = Annotated[int, Bounds(1, 1_000_000_000)]


@dataclass(frozen=True, slots=True)
class ThrottleLimits(BoundedSettings):
    """The most requests within a window: `user` for a user in all applications, `app` for an application of all users.

    `apps` gives single applications another limit than `app`. Raises ValueError for a number out of bounds.
    """

    user: _Most
    app: _Most
    apps: Mapping[str, _Most] = field(default_factory=dict)
    window_s: Annotated[float, Bounds(above=0, high=86_400)] = WINDOW_S

    def of_app(self, app: str) -> int:
        return self.apps.get(app, self.app)


@dataclass(frozen=True, slots=True)
class Throttled:
    """The refusal of a request. `limit`: the limit that is reached. If both are, the one that allows a request later.

    `retry_after_s`: seconds until it allows a request, if no other is admitted until then; above 0, at most the window.
    """

    limit: Literal["user", "app"]
    most: int
    retry_after_s: float


_Kept = tuple[str, str, tuple[float, ...] | None, tuple[float, ...] | None]
"""A user, an application, and the earlier admission times of each; None if it was not known."""


class Throttle:
    """Decides about requests in the order of their arrival. The caller gives the time and the saturation."""

    def __init__(self, limits: ThrottleLimits) -> None:
        self._limits = limits
        self._users: dict[str, deque[float]] = {}
        self._apps: dict[str, deque[float]] = {}

    def decide(self, user: str, app: str, now_s: float, *, saturated: bool, under_way: bool) -> Throttled | None:
        """Admit the request, count it and return None, or return its refusal. `now_s` must never fall."""
        refusal = self.check(user, app, now_s, saturated=saturated, under_way=under_way)
        if refusal is None:
            self.note(user, app, now_s)
            self.trim()
        return refusal

    def check(self, user: str, app: str, now_s: float, *, saturated: bool, under_way: bool) -> Throttled | None:
        """Return the refusal, or None. `under_way`: an earlier call of its interaction was admitted."""
        if not saturated or under_way:
            return None
        of_user = self._full("user", self._users.get(user), self._limits.user, now_s)
        of_app = self._full("app", self._apps.get(app), self._limits.of_app(app), now_s)
        full = [each for each in (of_user, of_app) if each is not None]
        return max(full, key=lambda each: each.retry_after_s, default=None)

    def note(self, user: str, app: str, now_s: float) -> _Kept:
        """Count an admission. Return the values that `restore` needs to undo it."""
        kept = (user, app, _copy(self._users.get(user)), _copy(self._apps.get(app)))
        _note_admission(self._users, user, self._limits.user, now_s)
        _note_admission(self._apps, app, self._limits.of_app(app), now_s)
        return kept

    def trim(self) -> None:
        """Forget the users and applications beyond KEPT_MAX that were admitted longest ago, by name if equally long."""
        for kept in (self._users, self._apps):
            if len(kept) > KEPT_MAX:
                for name in nsmallest(len(kept) - KEPT_MAX, kept, key=partial(_last_admission, kept)):
                    del kept[name]

    def restore(self, kept: _Kept) -> None:
        """Undo the last `note`."""
        user, app, of_user, of_app = kept
        _restore(self._users, user, of_user)
        _restore(self._apps, app, of_app)

    def dump(self) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
        """Return the admission times of users and of applications."""
        users = {name: list(times) for name, times in self._users.items()}
        return users, {name: list(times) for name, times in self._apps.items()}

    def load(self, users: Mapping[str, list[float]], apps: Mapping[str, list[float]]) -> None:
        """Take over what `dump` returned."""
        for name, times in users.items():
            self._users[name] = deque(times, self._limits.user)
        for name, times in apps.items():
            self._apps[name] = deque(times, self._limits.of_app(name))

    def _full(
        self, limit: Literal["user", "app"], times: deque[float] | None, most: int, now_s: float
    ) -> Throttled | None:
        # The age is compared with the window, not `now_s` with times[0] + window: rounded, that sum can be further away
        # than a window.
        if times is None or len(times) < most:
            return None
        age_s = now_s - times[0]
        return Throttled(limit, most, self._limits.window_s - age_s) if age_s < self._limits.window_s else None


def _last_admission(kept: Mapping[str, deque[float]], name: str) -> tuple[float, str]:
    return kept[name][-1], name


def _copy(times: deque[float] | None) -> tuple[float, ...] | None:
    return None if times is None else tuple(times)


def _restore(kept: dict[str, deque[float]], name: str, times: tuple[float, ...] | None) -> None:
    if times is None:
        del kept[name]
    else:
        kept[name] = deque(times, kept[name].maxlen)


def _note_admission(kept: dict[str, deque[float]], name: str, most: int, now_s: float) -> None:
    """Keep the last `most` admission times. The limit allows a request again when the oldest leaves the window."""
    times = kept.get(name)
    if times is None:
        times = kept[name] = deque(maxlen=most)
    times.append(now_s)
