"""The services that start and stop a pool's workers."""
