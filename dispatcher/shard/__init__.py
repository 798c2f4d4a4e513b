"""The gate as a state machine over a log: facts, their fold, decisions, snapshots. README.md is its contract. Pure."""
