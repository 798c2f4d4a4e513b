"""Engine models in virtual time, and the profiles of step times that they use."""
