"""The store in memory: exact, deterministic, with injectable faults. For simulations and tests."""
