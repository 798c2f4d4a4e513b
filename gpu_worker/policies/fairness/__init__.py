"""Queue policies: one interface, one registry, one file for each algorithm."""
