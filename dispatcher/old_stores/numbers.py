"""Numbers as a store keeps them: decimals with fixed places, so that sums are exact and every backend agrees.

A store adds charges to a clock without reading it (`SET tat = tat + :delta`), in decimal arithmetic. Were more digits
kept than a float carries, what a reader gets would not be what the next condition compares with, and a step computed
exactly at a branch's edge would be refused for ever. With these places each stored number is the shortest decimal of
the float that is read, so that comparing decimals and comparing floats come to the same:

- tat, microseconds: a Unix time with 6 decimals is a float of its own until the year 2106;
- vft and V, thousandths of a service unit: exact up to 9e12, years of a busy fleet;
- reserved and spent, millionths: summed as decimals, exact to 28 digits, and never negative by rounding.

Deviation from policies/clocks.py: each move is rounded by at most half a place, far below one token's service.
"""

from __future__ import annotations

from decimal import ROUND_FLOOR, Decimal
from math import isfinite

from dispatcher.policies.clocks import Step

TAT_PLACE = Decimal("0.000001")
VFT_PLACE = Decimal("0.001")
SERVICE_PLACE = Decimal("0.000001")
ZERO = Decimal(0)


def exact(value: float) -> Decimal:
    """The shortest decimal that reads back as `value`: at most 17 digits. ValueError if it is not finite."""
    if not isfinite(value):
        raise ValueError(f"only finite numbers can be stored, not {value!r}")
    return Decimal(repr(float(value)))


def placed(value: float, place: Decimal) -> Decimal:
    """`value` rounded to the nearest multiple of `place`."""
    return exact(value).quantize(place)


def virtual_time(value: float) -> Decimal:
    """V rounded down: it may lag, never lead."""
    return exact(value).quantize(VFT_PLACE, rounding=ROUND_FLOOR)


def service(value: float) -> Decimal:
    return placed(value, SERVICE_PLACE)


def stepped(step: Step, old: Decimal, place: Decimal) -> Decimal | None:
    """`Step.apply` on a stored number. A float and a decimal compare by binary value, so both sides are floats."""
    if not step.low <= float(old) <= step.high:
        return None
    return (old if step.base is None else placed(step.base, place)) + placed(step.delta, place)
