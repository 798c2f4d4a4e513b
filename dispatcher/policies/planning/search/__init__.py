"""The search for a plan: a first one by insertion, then annealing, by its cost. Pure."""
