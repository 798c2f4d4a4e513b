"""Max-min fair shares, and a check of measured shares against them."""

from __future__ import annotations

from collections.abc import Mapping


def max_min_shares(
    capacity: float, demands: Mapping[str, float], weights: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Return weighted max-min fair shares by progressive filling: none above its demand, the rest by weight."""
    weights = weights or dict.fromkeys(demands, 1.0)
    shares: dict[str, float] = {}
    while open_demands := {name: demand for name, demand in demands.items() if name not in shares}:
        level = (capacity - sum(shares.values())) / sum(weights[name] for name in open_demands)
        content = {name: demand for name, demand in open_demands.items() if demand <= level * weights[name]}
        if not content:
            return shares | {name: level * weights[name] for name in open_demands}
        shares |= content
    return shares


def check_shares(measured: Mapping[str, float], expected: Mapping[str, float], *, margin: float) -> None:
    """Raise AssertionError if a tenant's share differs by more than `margin`, relative to the expected share."""
    wrong = {
        name: f"{measured.get(name, 0.0):.2f}, not {share:.2f}"
        for name, share in expected.items()
        if abs(measured.get(name, 0.0) - share) > margin * share
    }
    assert not wrong, f"shares are wrong beyond {margin:.0%}: {wrong}"
