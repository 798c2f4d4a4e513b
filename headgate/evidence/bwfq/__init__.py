"""Experiments of the BWFQ paper, and the runs that decided the gate's order."""
