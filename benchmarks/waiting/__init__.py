"""Waiting times against simulated and measured runs (benchmarks/planning_waiting.py)."""
