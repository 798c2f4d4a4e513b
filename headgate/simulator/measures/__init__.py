"""Measures of a simulated run: service rates, percentiles, timelines, and the theorems' monitors."""
