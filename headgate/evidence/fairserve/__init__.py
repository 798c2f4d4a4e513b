"""The experiment of the FairServe paper (arXiv 2411.15997)."""
