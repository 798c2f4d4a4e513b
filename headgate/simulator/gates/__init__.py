"""Gates before a simulated engine: the production gate, single orders, throttling and shedding."""
