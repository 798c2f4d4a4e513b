"""All orders of the gate: an import of this module fills ORDERS, and `new_gate` makes a gate by name."""

from __future__ import annotations

from dispatcher.policies.clocks import LEAD_MAX
from dispatcher.policies.old_orders import bwfq, fcfs, ratio, sfq, virtual_clock
from dispatcher.policies.old_orders.interface import DEFAULT_ORDER, ORDERS, Gate

__all__ = ["DEFAULT_ORDER", "ORDERS", "bwfq", "fcfs", "new_gate", "ratio", "sfq", "virtual_clock"]


def new_gate(order: str = DEFAULT_ORDER, *, slots: int, lead_max: float = LEAD_MAX) -> Gate:
    """Return an empty gate. `lead_max` in service units a weight of 1. Raises ValueError for an unknown order."""
    maker = ORDERS.get(order)
    if maker is None:
        raise ValueError(f"unknown order {order!r}; there are: {', '.join(sorted(ORDERS))}")
    return maker(slots, lead_max=lead_max)
