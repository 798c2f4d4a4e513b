"""The evidence document: sections, tables and checks, written as Markdown with plots."""
