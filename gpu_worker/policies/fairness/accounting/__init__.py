"""Data structures that several queue policies share: queues, heaps, counters and predictions."""
