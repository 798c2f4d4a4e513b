"""The health of a worker's engine: what failures mean, what a probe finds, and how many slots the worker offers."""
