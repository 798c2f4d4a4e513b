"""What an operator sees of a running gate, read from its log: tenants, workers, leader, latencies, usage."""
