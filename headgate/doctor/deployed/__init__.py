"""Checks of a deployed stack: the list "Not yet run: what only AWS can show" of docs/operations.md, one check a row."""
