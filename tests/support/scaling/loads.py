"""Arrivals of work, in service units by second: a day, bursts, a flood at an idle pool."""

from __future__ import annotations

from math import cos, pi
from random import Random

from tests.support.scaling.fleet import CAPACITY_PER_S

DAY_S = 86_400
EVENT = 500.0
"""The service of one request."""


def arrivals(expected_per_s: list[float], random: Random) -> list[float]:
    """Return random arrivals of whole requests with these means."""
    return [EVENT * _count(each / EVENT, random) for each in expected_per_s]


def day(workers: float) -> list[float]:
    """Return a sine from 5 % to 100 % of the capacity of so many workers; the night is at both ends."""
    return [workers * CAPACITY_PER_S * (0.525 - 0.475 * cos(2 * pi * at / DAY_S)) for at in range(DAY_S)]


def bursts(workers: float, seconds: int, random: Random) -> list[float]:
    """Return a base of a tenth with bursts of 5 to 30 minutes, about one an hour."""
    found = [0.1 * workers * CAPACITY_PER_S] * seconds
    at = random.uniform(0, 3600)
    while at < seconds:
        length = random.uniform(300, 1800)
        for second in range(int(at), min(seconds, int(at + length))):
            found[second] = workers * CAPACITY_PER_S * 0.8
        at += length + random.expovariate(1 / 3600)
    return found


def flood(workers: float, quiet_s: int, busy_s: int, seconds: int) -> list[float]:
    """Return nothing, then the capacity of so many workers for `busy_s` seconds, then nothing."""
    return [workers * CAPACITY_PER_S if quiet_s <= at < quiet_s + busy_s else 0.0 for at in range(seconds)]


def _count(mean: float, random: Random) -> int:
    """Return a number with this mean: the sum of a Bernoulli's and the whole part, with a variance like Poisson's."""
    if mean > 30:
        return max(0, round(random.gauss(mean, mean**0.5)))
    left, count = random.expovariate(1.0), 0
    while left < mean:
        left += random.expovariate(1.0)
        count += 1
    return count
