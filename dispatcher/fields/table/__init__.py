"""The table itself, as data: one module for each part of a request."""
