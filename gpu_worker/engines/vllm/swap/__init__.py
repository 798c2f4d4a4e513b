"""Preemption by swapping inside vLLM: a victim's KV blocks go to host memory and come back."""
