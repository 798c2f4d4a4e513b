"""The state of a shard in memory, its parts and its indexes. Pure."""
