"""The operator's view of a running gate for the terminal, and as JSON (dispatcher/monitor reads it)."""
