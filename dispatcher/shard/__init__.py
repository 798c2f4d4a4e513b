"""The gate as a state machine over a log: facts, their fold, decisions, snapshots. Pure."""
