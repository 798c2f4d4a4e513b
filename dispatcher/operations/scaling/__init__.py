"""Sets how many workers each pool has."""
