"""Broken policies for the claims of the evidence: which claim notices which mutant."""
