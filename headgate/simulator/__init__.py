"""The simulator: the project's own policies and gate in virtual time. Only the GPU, the workload and the faults
are models."""
