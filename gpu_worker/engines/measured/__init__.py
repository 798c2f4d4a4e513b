"""Measurements of the machine that an engine runs on: step times, copy rates, predicted and observed costs."""
