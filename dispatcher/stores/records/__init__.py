"""The records of the store, each written once over the port of a table (dispatcher/stores/table.py)."""
