"""The simulator: the project's own policies and operations in virtual time. The GPU, the workload and the faults are
models; nothing else is."""
