"""An operator's view of a running gate, read from its log without writing: tenants, workers, plan, latencies, usage."""
