"""Preemption: which waiting requests are admitted, which running requests make room, and by which strategy."""
