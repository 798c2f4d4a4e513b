"""All orders of the gate: an import of this module fills ORDERS, and `new_order` makes an order by name."""

from __future__ import annotations

from dispatcher.policies.clocks import LEAD_MAX
from dispatcher.policies.orders import baselines, two_clocks
from dispatcher.policies.orders.interface import DEFAULT_ORDER, ORDERS, Order
from dispatcher.policies.orders.slack_index import Slack

__all__ = ["DEFAULT_ORDER", "ORDERS", "baselines", "new_order", "two_clocks"]


def new_order(name: str = DEFAULT_ORDER, *, lead_max: float = LEAD_MAX, slack: Slack | None = None) -> Order:
    """Return the order. `lead_max` in service units for a weight of 1; `slack`: how due times matter.

    Raises ValueError for an unknown order.
    """
    maker = ORDERS.get(name)
    if maker is None:
        raise ValueError(f"unknown order {name!r}; there are: {', '.join(sorted(ORDERS))}")
    return maker(lead_max=lead_max, slack=slack)
