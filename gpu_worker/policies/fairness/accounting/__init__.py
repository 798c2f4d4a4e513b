"""Data structures that several queue policies share: queues, counters, predictions."""
