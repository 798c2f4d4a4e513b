"""The experiments of the VTC paper (OSDI 2024)."""
