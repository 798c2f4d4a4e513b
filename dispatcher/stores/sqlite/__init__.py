"""The store in one SQLite file, for one machine and its processes."""
