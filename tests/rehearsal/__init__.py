"""`make rehearse`: the synthesised stack, created in moto, with real processes that have its settings."""
