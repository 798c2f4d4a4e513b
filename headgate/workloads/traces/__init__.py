"""Traces as files: headgate's CSV format and Azure's published CSV files."""
