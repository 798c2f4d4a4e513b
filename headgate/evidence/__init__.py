"""The papers' claims, checked with the project's own policies in the simulator. One module per group of experiments."""
