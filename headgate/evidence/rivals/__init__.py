"""Fairness of other gateways beside ours, with one or many processes that decide."""
