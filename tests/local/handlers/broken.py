"""A handler that cannot be loaded."""

raise KeyError("SETTING")
