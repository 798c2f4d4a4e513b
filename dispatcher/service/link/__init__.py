"""How fronts, workers and Lambda executions send commands to the shard and get its news."""
