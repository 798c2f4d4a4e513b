"""A process's way to the shard, for fronts, workers and Lambda executions."""
