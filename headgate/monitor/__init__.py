"""The operator's view of a running gate, read from its log: tenants, workers, leader, latencies and usage."""
