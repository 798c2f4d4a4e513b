"""The shapes of values: what a field accepts, and its bounds."""
