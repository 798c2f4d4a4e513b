"""Queue policies: one interface, one registry, one file for each algorithm (the baselines share one)."""
