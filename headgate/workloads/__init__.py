"""Workloads: requests with tenant, time and lengths, read from traces or made from a description. Pure."""
