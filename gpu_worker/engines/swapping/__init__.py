"""Models that one worker loads, puts to sleep and exchanges."""
