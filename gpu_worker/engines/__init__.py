"""Adapters that put the queue policies inside real engines."""
