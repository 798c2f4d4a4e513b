"""Measures of a simulated run: service difference, percentiles, tiers, timelines, and the bounds of the theorems."""
