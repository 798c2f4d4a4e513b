"""Checks of an account before a deployment, and of a service after it."""
