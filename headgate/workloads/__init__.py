"""Workloads: who asks for how much, and when. Read from traces or made from published statistics. Pure."""
