"""Checks of an AWS account before a deployment, of a deployed stack, and of a service after it."""
