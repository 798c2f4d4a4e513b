"""The workers of a pool: their service, their instances, their network."""
