"""Experiments of FairServe (arXiv 2411.15997)."""
