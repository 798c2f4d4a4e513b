"""Planners of a fleet: one file for each, an interface and a registry."""
