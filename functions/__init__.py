"""The Lambda functions: one folder each, with a thin handler."""
