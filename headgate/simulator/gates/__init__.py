"""The gate before a simulated engine or cluster; throttling and shedding without a gate."""
