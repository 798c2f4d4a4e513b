"""Pure policies of the engine's queue. Standard library only: a rented GPU box has nothing else."""
