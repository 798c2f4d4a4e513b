"""Service-level objectives: the monitor of first-token and end times, and load shedding."""
