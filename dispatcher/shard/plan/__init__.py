"""The plan of a shard: what the planner gets, and how its proposal becomes facts. Pure."""
