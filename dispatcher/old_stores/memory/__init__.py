"""The store in memory: exact, for simulations, tests and single processes."""
