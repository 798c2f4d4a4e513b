"""The Lambda entry points: one folder a function, a thin handler each."""
