"""Planners of a fleet: headgate's own, QLM's, and the baselines, with an interface and a registry."""
