"""Figures, printed beside their baselines: each module runs by itself, `python -m benchmarks` runs them all."""
