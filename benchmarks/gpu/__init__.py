"""The parts of benchmarks/gpu_once.py: a run of the engine on one GPU, or of the same script on a CPU."""
