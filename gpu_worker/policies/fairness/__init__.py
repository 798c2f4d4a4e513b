"""Queue policies: one interface, one registry, one file an algorithm."""
