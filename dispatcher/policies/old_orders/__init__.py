"""The orders in which the gate dispatches waiting invocations: one interface, one registry, one file an order."""
