"""What the papers claim, beside what the project's own policies do in the simulator: one module an experiment."""
