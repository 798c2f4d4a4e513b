"""Preemption: which waiting requests are admitted, which running requests are evicted for them, and how."""
