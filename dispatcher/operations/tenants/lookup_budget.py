"""Bounds the lookups of unknown API keys, so that a flood of them neither overloads the table nor locks out a tenant.

Whether a key exists is known only after its lookup. So each lookup takes a use of a budget before it, and gets it back
if it finds the key. What a front knows before the lookup decides which budget it takes:

- A key ends with a check of its other characters (`directory.new_key`). Keys with a right check have one budget, and
  all others another: typing errors, keys of other services, guesses, and keys that were made before there was a check.
- An address has a part of each budget. Its further lookups are refused, and other addresses have the rest.
- If others have used up a budget, an address that sent a known key lately takes a reserve.

So no flood of one address, and no flood of keys without the check, refuses a tenant that sends a key with the check
from an address of its own. A flood of keys with the check from many addresses refuses only tenants at new addresses.
The budgets bound the lookups of unknown keys to three times LimitSettings.unknown_keys_per_s.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass

from dispatcher.model.errors import Refused
from dispatcher.operations.limits import LimitSettings, TokenBucket
from dispatcher.ports import Clock

ADDRESSES_MAX = 10_000
"""The most addresses that are remembered, for their part of a budget and for their last known key."""
ADDRESS_PART = 0.5
"""The part of a budget that one address may use."""
LATELY_S = 3600.0
"""For this time after a known key, an address may use the reserve."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """A use of some budgets."""

    buckets: tuple[TokenBucket, ...]

    def give_back(self) -> None:
        for bucket in self.buckets:
            bucket.give_back()


class LookupBudget:
    """The budgets of one process. An empty address is unknown, as in Lambda: it has no part and no reserve."""

    def __init__(self, limits: LimitSettings, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self._checked, self._unchecked, self._reserve = (self._bucket(1.0) for _ in range(3))
        self._parts: OrderedDict[tuple[str, bool], TokenBucket] = OrderedDict()
        """The part of each address in a budget, the least recently used one first."""
        self._known: OrderedDict[str, float] = OrderedDict()
        """When each address last sent a known key (monotonic seconds), the longest ago first."""

    def take(self, address: str, *, is_checked: bool) -> Lookup:
        """Take a use for a key; its check is right if `is_checked`. Raises Refused."""
        taken: list[TokenBucket] = []
        try:
            if address:
                self._use(self._part(address, is_checked), taken)
            common = self._checked if is_checked else self._unchecked
            if wait_s := common.take():
                if not self._is_known(address) or self._reserve.take():
                    raise _refusal(wait_s)
                common = self._reserve
            taken.append(common)
        except Refused:
            Lookup(tuple(taken)).give_back()
            raise
        return Lookup(tuple(taken))

    def note_known(self, address: str) -> None:
        """Remember that the address sent a known key."""
        if address:
            self._known.pop(address, None)
            self._known[address] = self._clock.monotonic()
            if len(self._known) > ADDRESSES_MAX:
                self._known.popitem(last=False)

    def _use(self, bucket: TokenBucket, taken: list[TokenBucket]) -> None:
        if wait_s := bucket.take():
            raise _refusal(wait_s)
        taken.append(bucket)

    def _part(self, address: str, is_checked: bool) -> TokenBucket:
        place = (address, is_checked)
        bucket = self._parts.pop(place, None) or self._bucket(ADDRESS_PART)
        self._parts[place] = bucket
        if len(self._parts) > ADDRESSES_MAX:
            self._parts.popitem(last=False)
        return bucket

    def _is_known(self, address: str) -> bool:
        at = self._known.get(address, -math.inf)
        return self._clock.monotonic() - at < LATELY_S

    def _bucket(self, part: float) -> TokenBucket:
        burst = max(1.0, part * self._limits.unknown_keys_burst) if self._limits.unknown_keys_burst else 0.0
        return TokenBucket(part * self._limits.unknown_keys_per_s, burst, self._clock)


def _refusal(wait_s: float) -> Refused:
    after_s = float(math.ceil(min(60.0, max(1.0, wait_s))))
    message = (
        "Too many unknown API keys were sent to this server. For now it looks up no others "
        f"(limit `unknown_keys`). Try again in about {after_s:g} s."
    )
    return Refused(message, "unknown_keys", after_s)
