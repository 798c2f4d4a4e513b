"""Workloads described in YAML: tenants, arrival processes, lengths and interactions."""
