"""The evidence document: sections, checks, plots, Markdown."""
