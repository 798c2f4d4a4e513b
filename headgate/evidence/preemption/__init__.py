"""Experiments on the practitioner's design of priorities and preemption (docs/preemption-design.md)."""
